"""commlib.RadixCache keeps its contract, call by call; test_traces.py has the random traces."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from commlib.radix import RadixCache
from commlib.radix.events import decoded, encoded
from tests.radix.pair import filled, ids


def test_trimming_a_long_leaf_page_by_page_keeps_memory_in_step():
    cache, _ = filled(tuple(range(4096)), eviction="tail")
    empty = RadixCache().stats().memory_bytes
    for _ in range(4000):
        cache.evict(1)
    assert cache.stats().memory_bytes - empty < 16 * 2 * 96 + 1000
    cache.check()


def test_reset_kills_handles_and_refuses_while_locked():
    cache, (handle,) = filled((1, 2))
    root = cache.match(ids(7)).handle
    cache.lock(handle)
    with pytest.raises(ValueError, match="free what is in use: 2 tokens, held by 1 lock; unlock"):
        cache.reset()
    cache.reset(force=True)
    for dead in (handle, root):
        with pytest.raises(ValueError, match="is dead"):
            cache.unlock(dead)
    assert (cache.evictable_size, cache.protected_size, cache.match(ids(1)).length) == (0, 0, 0)
    cache.check()


def test_stats_count_what_happened():
    cache, _ = filled((1, 2, 3), (1, 2, 4))
    cache.match(ids(1, 2, 3, 4)), cache.match(ids(9))
    cache.evict(1)
    stats = cache.stats()
    assert (stats.matches, stats.requested_tokens, stats.hit_tokens) == (2, 5, 3)
    assert (stats.inserts, stats.inserted_tokens, stats.splits) == (2, 4, 1)
    assert (stats.evicted_leaves, stats.evicted_tokens, stats.nodes, stats.leaves) == (1, 1, 2, 1)


def test_large_ids_are_not_found_whatever_their_low_half():
    cache, _ = filled((1, 2))
    assert cache.match(ids(2**32 + 1, 2)).length == 0
    assert cache.match(ids(1, 2**32 + 2)).length == 1


def test_a_slot_inserted_twice_is_found_by_check():
    cache, _ = filled((1, 2))
    cache.insert(ids(3), ids(1))
    with pytest.raises(RuntimeError, match="I7: slot 1 was inserted twice"):
        cache.check()


def test_threads_do_not_corrupt_it():
    cache = RadixCache(capacity=400, eviction="tail")

    def work(thread):
        rng = np.random.default_rng(thread)
        for turn in range(300):
            prompt = rng.integers(0, 3, 20)
            handle = cache.match(prompt).handle
            try:
                cache.lock(handle)
            except ValueError:  # another thread evicted it in between
                continue
            cache.insert(prompt, np.arange(20) + 20 * (300 * thread + turn))
            cache.unlock(handle)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert cache.protected_size == 0
    cache.check()


# Each differs from the others although some look alike, as text, as bytes or joined.
NAMES = (
    None, "", b"", (), (None,), ("",), 0, -1, 1, 255, 256, -128, 2**80, "1", b"1", (1,), ("1",), "a", b"a", ("a",),
    ("a", "b"), ("ab",), ("a", "b", None), ("a", b"b"), ("", "ab"), (1, "a"), ("a", 1), "s\x01\x00\x00\x00a", "\ud800",
)  # fmt: skip
PROMPT = np.arange(4)


def test_names_share_no_tokens_and_can_be_read_back():
    cache = RadixCache()
    for i, name in enumerate(NAMES):
        assert decoded(None if name is None else encoded(name).decode()) == name
        assert cache.insert(PROMPT, PROMPT + 4 * i, namespace=name).existing == 0
    for i, name in enumerate(NAMES):
        assert cache.match(PROMPT, namespace=name).slots.tolist() == (PROMPT + 4 * i).tolist()
    cache.check()


def test_names_are_forgotten_with_their_nodes():
    cache, sizes = RadixCache(capacity=8), set()
    for i in range(5000):
        cache.insert(PROMPT, PROMPT + 4 * (i % 50), namespace=f"user {i}")
        sizes.add(cache.stats().memory_bytes if i > 50 else 0)
    assert len(sizes) == 2
    cache.check()


def test_text_has_a_line_for_each_node():
    cache = RadixCache(page_size=2)
    cache.insert(ids(1, 2, 3, 4), np.arange(4), priority=5)
    cache.insert(ids(1, 2, 7, 8), np.arange(4, 8))
    cache.insert(ids(1, 2), np.arange(8, 10), namespace="<a&b>")
    cache.lock(cache.match(ids(1, 2, 7, 8)).handle)
    root, *nodes = cache.dump().splitlines()
    assert root == "root, 0 locks"
    assert len(nodes) == cache.stats().nodes
    assert "└─ #2  2 tokens  1…2  hits 2  used 4  locked 1  priority 5" in nodes
