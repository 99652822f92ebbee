"""Events rebuild the cache's blocks exactly, with hashes that Python's hashlib gives."""

import hashlib
import struct

import numpy as np
import pytest

from commlib.radix import AllBlocksCleared, BlockRemoved, BlockStored, RadixCache
from commlib.radix.events import as_array, as_map, encoded


def hashes(tokens, page_size, namespace=None):
    """Chained hashes of the pages, by hashlib."""
    name, before, numbers = encoded(namespace), b"", []
    if name is not None:
        before = hashlib.sha256(name).digest()
    for at in range(0, len(tokens) - page_size + 1, page_size):
        before = hashlib.sha256(before + struct.pack(f"<{page_size}i", *tokens[at : at + page_size])).digest()
        numbers.append(int.from_bytes(before[:8], "big", signed=True))
    return numbers


class Router:
    """What a router knows: its blocks, each with the one before it."""

    def __init__(self):
        self.blocks = {}

    def read(self, events):
        for event in events:
            if isinstance(event, BlockStored):
                parent = event.parent_block_hash
                assert parent is None or parent in self.blocks
                for i, block in enumerate(event.block_hashes):
                    assert block not in self.blocks
                    self.blocks[block] = event.token_ids[i * event.block_size : (i + 1) * event.block_size]
            elif isinstance(event, BlockRemoved):
                for block in event.block_hashes:
                    del self.blocks[block]
            else:
                self.blocks.clear()


@pytest.mark.parametrize("namespace", [None, "", 7, ("salt", 3)])
@pytest.mark.parametrize("page_size", [1, 4, 16, 33])
def test_hashes_are_those_of_hashlib(page_size, namespace):
    cache = RadixCache(page_size=page_size, events=True)
    tokens = [*range(-3, 70), 2**31 - 1, -(2**31), 9] * 2
    cache.insert(np.array(tokens), np.arange(len(tokens)), namespace=namespace)
    (event,) = cache.take_events()
    assert event.block_hashes == hashes(tokens, page_size, namespace)
    assert event.token_ids == tokens[: len(event.block_hashes) * page_size]
    assert (event.block_size, event.parent_block_hash, event.medium) == (page_size, None, "GPU")
    keys = namespace if isinstance(namespace, tuple) else (namespace,)
    lora = next((key for key in keys if isinstance(key, int)), None)
    assert (event.lora_id, event.extra_keys) == (lora, None if namespace is None else [keys] * len(event.block_hashes))
    cache.check()


@pytest.mark.parametrize("eviction", ["leaf", "tail"])
def test_a_router_knows_what_the_cache_has(eviction):
    rng = np.random.default_rng(3)
    cache, router = RadixCache(page_size=2, capacity=60, eviction=eviction, events=True), Router()
    for turn in range(400):
        prompt = rng.integers(0, 2, rng.integers(0, 14))
        cache.insert(prompt, np.arange(len(prompt)) + 14 * turn, namespace=(None, "x")[turn % 2])
        cache.match(rng.integers(0, 2, 12))
        if turn % 7 == 0:
            cache.evict(min(5, cache.evictable_size))
        router.read(cache.take_events())
        assert len(router.blocks) * 2 == cache.evictable_size
    cache.check()
    cache.reset()
    assert cache.take_events() == [AllBlocksCleared()]


def test_events_are_written_as_routers_read_them():
    cache = RadixCache(events=True)
    cache.insert(np.array([1]), np.array([0]))
    cache.evict(1), cache.reset()
    stored, removed, cleared = cache.take_events()
    (number,) = hashes([1], 1)
    assert as_array(stored) == ["BlockStored", [number], None, [1], 1, None, "GPU", None, None]
    assert as_array(removed) == ["BlockRemoved", [number], "GPU"]
    assert as_array(cleared) == ["AllBlocksCleared"]
    assert as_map(removed) == {"type": "BlockRemoved", "block_hashes": [number], "medium": "GPU"}
    assert "parent_block_hash" not in as_map(stored)
