"""A native cache and its model, called together: whatever one returns, the other must."""

import numpy as np
import pytest

from commlib import RadixCache
from tests.radix.model import Model


def ids(*values):
    return np.array(values, np.int64)


def filled(*prompts, **options):
    """A cache that holds these prompts, with slots counted up from 0, and the handles of its inserts."""
    cache, handles, slot = RadixCache(**options), [], 0
    for prompt in prompts:
        handles.append(cache.insert(ids(*prompt), np.arange(slot, slot + len(prompt))).handle)
        slot += len(prompt)
    return cache, handles


class Pair:
    def __init__(self, **options):
        self.freed = []
        self.cache = RadixCache(**options, on_free=lambda slots: self.freed.extend(slots.tolist()))
        self.model = Model(**options)
        self.handles = []  # (native, model), of every match and insert
        self.locked = []
        self.next_slot = 0

    def match(self, ids, namespace=None, touch=True):
        expected = self.model.match(ids, namespace, touch)
        result = self.cache.match(np.array(ids, np.int64), namespace=namespace, touch=touch)
        assert (result.length, result.slots.tolist()) == expected[:2]
        self.handles.append((result.handle, expected[2]))

    def peek(self, prompts, namespaces):
        expected = [self.model.find(ids, space)[1] for ids, space in zip(prompts, namespaces, strict=True)]
        arrays = [np.array(ids, np.int32) for ids in prompts]
        assert self.cache.match_many(arrays, namespaces).tolist() == expected

    def insert(self, ids, namespace=None, priority=0, counted=0):
        slots = list(range(self.next_slot, self.next_slot + len(ids)))
        self.next_slot += len(ids)
        native = (np.array(ids, np.int32), np.array(slots, np.int32))
        keywords = dict(namespace=namespace, priority=priority, counted=counted)
        try:
            existing, handle, freed = self.model.insert(ids, slots, **keywords)
        except ValueError:
            self.refused(lambda: self.cache.insert(*native, **keywords), "capacity is")
            return
        self.freed.clear()
        result = self.cache.insert(*native, **keywords)
        assert (result.existing, self.freed) == (existing, freed)
        self.handles.append((result.handle, handle))

    def evict(self, tokens, at_most=False):
        try:
            expected = self.model.evict(tokens, at_most)
        except ValueError:
            self.refused(lambda: self.cache.evict(tokens), "are evictable and")
            return
        self.freed.clear()
        assert self.cache.evict(tokens, at_most=at_most).tolist() == expected == self.freed

    def lock(self, which):
        native, handle = self.handles[which]
        if not self.model.alive(handle):
            self.refused(lambda: self.cache.lock(native), "is dead")
            return
        self.model.lock(handle)
        self.cache.lock(native)
        self.locked.append(which)

    def unlock(self, which):
        native, handle = self.handles[which]
        try:
            self.model.unlock(handle)
        except ValueError:
            self.refused(lambda: self.cache.unlock(native), "is dead|is not locked")
            return
        self.cache.unlock(native)

    def reset(self):
        expected = sorted(slot for node in self.model.nodes() for slot in node.slots)
        self.freed.clear()
        self.cache.reset(force=True)
        self.model.reset()
        self.locked.clear()
        assert sorted(self.freed) == expected

    def refused(self, call, words):
        before = self.cache.dump()
        with pytest.raises(ValueError, match=words):
            call()
        assert self.cache.dump() == before
        self.cache.check()

    def same_sizes(self):
        sizes = (self.cache.evictable_size, self.cache.protected_size)
        assert sizes == (self.model.evictable(), self.model.protected())

    def same_contents(self):
        self.cache.check()
        self.same_sizes()
        contents = self.model.contents()
        assert self.cache.stats().nodes == len(contents)
        for (namespace, ids), slots in contents.items():
            result = self.cache.match(np.array(ids, np.int64), namespace=namespace, touch=False)
            assert (result.length, result.slots.tolist()) == (len(ids), slots)
            assert self.cache.slots(result.handle).tolist() == slots
        held = [slot for node in self.model.nodes() for slot in node.slots]
        assert sorted(self.cache.slots().tolist()) == sorted(held)

    def drain(self):
        """Unlock all, then evict step by step: the whole order must be the model's."""
        for which in self.locked:
            self.unlock(which)
        while self.model.evictable():
            self.evict(1)
        self.same_sizes()
        assert self.cache.stats().nodes == 0
