"""On random calls and requests SGLangRadixCache agrees with a model, and every slot is in one place."""

import random

import pytest
import torch

from commlib.radix import sglang
from commlib.radix.sglang import CacheInitParams, InsertParams, MatchPrefixParams, RadixKey, SGLangRadixCache
from tests.radix.model import Model
from tests.radix.pools import Allocator, Rows, request, row_of

RUNS, CALLS, SLOTS = 20, 60, 96  # SLOTS in pages


class Mixture:
    """An SGLangRadixCache and a Model that are told the same; each slot is free, in the tree, or of one request."""

    def __init__(self, seed, page_size, policy):
        self.random, self.page = random.Random(seed), page_size
        self.allocator = Allocator(SLOTS * page_size, page_size)
        pools = dict(req_to_token_pool=Rows(), token_to_kv_pool_allocator=self.allocator)
        self.cache = SGLangRadixCache(CacheInitParams(**pools, page_size=page_size, eviction_policy=policy))
        self.model = Model(page_size, policy)
        self.locked, self.running = [], {}

    def prompt(self, least=0):
        pages = self.random.randrange(least, 6)
        whole = [t for _ in range(pages) for t in [*[0] * (self.page - 1), self.random.randrange(3)]]
        return whole + [1] * self.random.randrange(self.page)

    def space(self):
        return self.random.choice((None, None, "adapter"))

    def match(self):
        tokens, space = self.prompt(), self.space()
        length, slots, handle = self.model.match(tokens, space)
        found = self.cache.match_prefix(MatchPrefixParams(RadixKey(tokens, space)))
        assert (found.device_prefix_len, found.device_indices.tolist()) == (length, slots)
        if self.random.random() < 0.3:
            self.model.lock(handle)
            before = self.cache.evictable_size()
            assert self.cache.inc_lock_ref(found.last_device_node).delta == self.model.evictable() - before
            self.locked.append((found.last_device_node, handle))

    def unlock(self):
        node, handle = self.locked.pop(self.random.randrange(len(self.locked)))
        self.model.unlock(handle)
        before = self.cache.evictable_size()
        assert self.cache.dec_lock_ref(node).delta == self.model.evictable() - before

    def insert(self):
        tokens, space = self.prompt(), self.space()
        priority, counted = self.random.randrange(3), self.random.randrange(6)
        whole = len(tokens) - len(tokens) % self.page
        if whole > len(self.allocator.available):
            return
        slots = self.allocator.take(whole)
        existing, _, _ = self.model.insert(tokens[:whole], slots, space, priority, counted)
        params = InsertParams(RadixKey(tokens, space), torch.tensor(slots), priority=priority, inserted_len=counted)
        assert self.cache.insert(params).prefix_len == existing
        if existing:
            self.allocator.free(torch.tensor(slots[:existing]))

    def evict(self, count=None):
        count = self.random.randrange(3 * self.page) if count is None else count
        self.allocator.took_back()
        expected = self.model.evict(count, at_most=True)
        assert self.cache.evict(sglang.EvictParams(count)).num_tokens_evicted == len(expected)
        assert self.allocator.took_back() == sorted(expected)

    def start(self):
        prompt, output = self.prompt(1), [2] * self.random.randrange(4)
        priority, space = self.random.randrange(3), self.space()
        room = -(-len(prompt + output) // self.page) * self.page
        if room > len(self.allocator.available):
            self.evict(room - len(self.allocator.available))
        row = self.random.choice([row for row in range(8) if row not in self.running])
        if room > len(self.allocator.available):
            return
        length, slots, handle = self.model.match(prompt[:-1], space)
        self.model.lock(handle)
        req = request(self.cache, prompt, row, output, priority, space)
        assert req.slots[:length] == slots
        req.handle, self.running[row] = handle, req

    def store(self, req, tokens, counted):
        """Let the model insert what a request has, and return what it holds then and what it is to free."""
        whole = len(tokens) - len(tokens) % self.page
        row = row_of(self.cache, req, len(req.slots))
        existing, handle, _ = self.model.insert(tokens[:whole], row[:whole], req.extra_key, req.priority, counted)
        self.model.lock(handle)
        self.model.unlock(req.handle)
        req.handle = handle
        return whole, row, row[req.cache_protected_len : existing]

    def go_on(self, req):
        req.fill_ids = req.origin_input_ids[: self.random.randrange(1, len(req.origin_input_ids) + 1)]
        if len(req.fill_ids) < req.cache_protected_len:
            return
        chunked = self.random.random() < 0.5
        whole, row, freed = self.store(req, req.fill_ids, len(req.fill_ids) if chunked else 0)
        self.allocator.took_back()
        self.cache.cache_unfinished_req(req, chunked)
        held = [slot for node in req.handle[0].path() for slot in node.slots]
        assert self.allocator.took_back() == sorted(freed)
        assert row_of(self.cache, req, len(row)) == held + row[whole:]
        assert req.prefix_indices.tolist() == held + row[whole : len(req.fill_ids)]

    def end(self, req):
        tokens, keeps = req.origin_input_ids + req.output_ids, self.random.random() < 0.8
        whole, row, freed = self.store(req, tokens, 0) if keeps else (0, row_of(self.cache, req, len(req.slots)), [])
        self.model.unlock(req.handle)
        self.allocator.took_back()
        self.cache.cache_finished_req(req, is_insert=keeps)
        assert self.allocator.took_back() == sorted(freed + row[whole:] if keeps else row[req.cache_protected_len :])
        del self.running[req.req_pool_idx]

    def step(self):
        draw, req = self.random.random(), self.random.choice([None, *self.running.values()])
        if draw < 0.4 and req:
            self.go_on(req) if draw < 0.2 else self.end(req)
        elif draw < 0.6 and len(self.running) < 6:
            self.start()
        elif draw < 0.7 and self.locked:
            self.unlock()
        else:
            self.random.choice((self.match, self.insert, self.evict))()

    def same(self):
        sizes = (self.cache.evictable_size(), self.cache.protected_size(), self.cache.total_size())
        assert sizes == (self.model.evictable(), self.model.protected(), self.model.total())
        held = [slot for node in self.model.nodes() for slot in node.slots]
        assert sorted(self.cache.all_values_flatten().tolist()) == sorted(held)
        for req in self.running.values():
            held += row_of(self.cache, req, len(req.slots))[req.cache_protected_len :]
        assert sorted(held + self.allocator.available) == list(range(SLOTS * self.page))


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("policy", ["lru", "slru", "priority"])
def test_it_agrees_with_the_model_and_loses_no_slot(policy, page_size):
    for seed in range(RUNS):
        mixture = Mixture(f"{policy} {page_size} {seed}", page_size, policy)
        for _ in range(CALLS):
            mixture.step()
            mixture.same()
        for req in [*mixture.running.values()]:
            mixture.end(req)
        while mixture.locked:
            mixture.unlock()
        mixture.evict(SLOTS * page_size)
        mixture.same()
        assert len(mixture.allocator.available) == SLOTS * page_size
