"""commlib.RadixCache keeps its contract, call by call; test_traces.py has the random traces."""

import threading

import numpy as np
import pytest
import torch

import commlib
from commlib.radix import POLICIES, RadixCache
from tests.radix.pair import filled, ids


def test_it_is_a_public_name():
    assert commlib.RadixCache is RadixCache


def test_a_tail_that_fills_no_page_is_not_stored():
    cache = RadixCache(page_size=4)
    assert cache.insert(np.arange(3), np.arange(3)) == (0, cache.match(np.arange(2)).handle)
    cache.insert(np.arange(11), np.arange(11))
    assert (cache.evictable_size, cache.match(np.arange(11)).length, cache.match(np.arange(7)).length) == (8, 8, 4)


def test_a_split_keeps_handles_and_locks():
    cache, (handle,) = filled((1, 2, 3, 4))
    cache.lock(handle)
    front = cache.match(ids(1, 2))
    assert (cache.evictable_size, cache.protected_size) == (0, 4)
    cache.lock(front.handle)
    cache.unlock(handle)
    assert (cache.evictable_size, cache.protected_size) == (2, 2)
    assert cache.evict(1).tolist() == [2, 3]
    cache.unlock(front.handle)
    assert cache.evict(2).tolist() == [0, 1]
    cache.check()


def test_a_match_of_nothing_may_be_locked():
    cache, _ = filled((1, 2))
    handle = cache.match(ids(9)).handle
    cache.lock(handle), cache.lock(handle)
    assert (cache.evictable_size, cache.protected_size, cache.stats().locks) == (2, 0, 2)
    cache.unlock(handle), cache.unlock(handle)
    with pytest.raises(ValueError, match="not locked"):
        cache.unlock(handle)


def test_a_peek_leaves_the_order_of_eviction():
    cache, _ = filled((1,), (2,))
    cache.match(ids(1), touch=False)
    assert cache.evict(1).tolist() == [0]
    cache, _ = filled((1,), (2,))
    cache.match(ids(1))
    assert cache.evict(1).tolist() == [1]


def test_match_many_changes_nothing():
    cache, _ = filled((1, 2, 3), (1, 2, 4))
    before = cache.dump(), cache.stats()
    prompts = [ids(1), torch.tensor([1, 2, 4, 5], dtype=torch.int32), ids(2), ids()]
    assert cache.match_many(prompts).tolist() == [1, 3, 0, 0]
    assert cache.match_many(prompts[:2], [None, "other"]).tolist() == [1, 0]
    assert (cache.dump(), cache.stats()) == before
    assert cache.match_many([]).shape == (0,)
    with pytest.raises(ValueError, match="1 namespace for 2 prompts; pass one for each"):
        cache.match_many(prompts[:2], [None])


def test_insert_and_match_returns_the_slots_that_stay():
    cache, _ = filled((1, 2, 3))
    result = cache.insert_and_match(ids(1, 2, 7, 8), ids(10, 11, 12, 13))
    assert (result.existing, result.length, result.slots.tolist()) == (2, 4, [0, 1, 12, 13])
    cache.lock(result.handle)
    assert cache.protected_size == 4


# What the leaves a, b and c are evicted in, after: a, b, c inserted with priorities 1, 0, 2; b twice more; a matched.
ORDERS = {"lru": "cba", "lfu": "cab", "fifo": "abc", "mru": "abc", "filo": "cba", "priority": "bac", "slru": "cab"}


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_has_its_order(policy):
    cache = RadixCache(policy=policy)
    for slot, priority in enumerate((1, 0, 2)):
        cache.insert(ids(slot), ids(slot), priority=priority)
    cache.insert(ids(1), ids(1)), cache.insert(ids(1), ids(1))
    cache.match(ids(0))
    assert "".join("abc"[cache.evict(1).item()] for _ in range(3)) == ORDERS[policy]


def test_priority_raises_the_whole_path():
    cache = RadixCache(policy="priority")
    cache.insert(ids(1), ids(0)), cache.insert(ids(5), ids(9), priority=3)
    cache.insert(ids(1, 2), ids(0, 1), priority=7)
    cache.insert(ids(1), ids(0), priority=2)
    assert [cache.evict(1).item() for _ in range(3)] == [9, 1, 0]


def test_tail_eviction_frees_only_the_pages_needed():
    cache, (handle,) = filled(tuple(range(8)), page_size=2, eviction="tail")
    assert cache.evict(3).tolist() == [4, 5, 6, 7]
    with pytest.raises(ValueError, match="is dead"):  # what it stood for ends elsewhere now
        cache.lock(handle)
    assert cache.match(np.arange(8)).length == 4
    cache.check()


def test_trimming_a_long_leaf_page_by_page_keeps_memory_in_step():
    cache, _ = filled(tuple(range(4096)), eviction="tail")
    empty = RadixCache().stats().memory_bytes
    for _ in range(4000):
        cache.evict(1)
    assert cache.stats().memory_bytes - empty < 16 * 2 * 96 + 1000
    cache.check()


@pytest.mark.parametrize("eviction", ["leaf", "tail"])
def test_at_most_frees_what_is_there(eviction):
    cache, (handle, _) = filled((1, 2, 3), (4, 5), eviction=eviction)
    cache.lock(handle)
    assert cache.evict(9, at_most=True).tolist() == [3, 4]
    assert cache.evict(9, at_most=True).tolist() == []
    cache.unlock(handle)
    # With enough there it is evict(n): whole leaves, so more than n may go.
    assert cache.evict(1, at_most=True).tolist() == ([0, 1, 2] if eviction == "leaf" else [2])


def test_capacity_evicts_first_and_tells_on_free():
    freed = []
    cache = RadixCache(capacity=6, on_free=lambda slots: freed.append(slots.tolist()))
    cache.insert(ids(1, 2, 3), ids(0, 1, 2)), cache.insert(ids(1, 2, 4), ids(3, 4, 5))
    assert freed == []
    cache.insert(ids(1, 2, 4, 6, 7, 8), ids(10, 11, 12, 13, 14, 15))
    assert freed == [[2]]
    assert cache.evictable_size == 6
    nodes = cache.stats().nodes
    with pytest.raises(
        ValueError, match=r"insert\(\) adds 2 tokens, but capacity is 6: 0 are locked and 6 are the prefix"
    ):
        cache.insert(ids(1, 2, 4, 6, 7, 8, 9, 9), np.arange(8))
    cache.lock(cache.match(ids(1, 2, 4)).handle)
    with pytest.raises(ValueError, match="adds 4 tokens, but capacity is 6: 3 are locked and 0 are the prefix"):
        cache.insert(ids(9, 8, 7, 6), np.arange(4))
    assert cache.stats().nodes == nodes
    cache.check()


def test_on_free_is_told_of_every_way_out():
    freed = []
    cache = RadixCache(capacity=4, on_free=lambda slots: freed.append(slots.tolist()))
    cache.insert(ids(1, 2), ids(0, 1)), cache.insert(ids(3, 4), ids(2, 3))
    cache.evict(0)
    cache.evict(1)
    cache.insert_and_match(ids(5, 6, 7), ids(4, 5, 6))
    cache.reset(), cache.reset()
    assert freed == [[0, 1], [2, 3], [4, 5, 6]]


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


def test_a_handle_of_another_cache_is_refused():
    _, (handle,) = filled((1, 2))
    other, _ = filled((1, 2))
    with pytest.raises(ValueError, match="is dead"):
        other.lock(handle)


def test_stats_count_what_happened():
    cache, _ = filled((1, 2, 3), (1, 2, 4))
    cache.match(ids(1, 2, 3, 4)), cache.match(ids(9))
    cache.evict(1)
    stats = cache.stats()
    assert (stats.matches, stats.requested_tokens, stats.hit_tokens) == (2, 5, 3)
    assert (stats.inserts, stats.inserted_tokens, stats.splits) == (2, 4, 1)
    assert (stats.evicted_leaves, stats.evicted_tokens, stats.nodes, stats.leaves) == (1, 1, 2, 1)


def test_memory_stays_within_its_bound():
    cache, empty = RadixCache(), RadixCache().stats().memory_bytes
    for first in range(3000):
        cache.insert(np.arange(first * 50, first * 50 + 50), np.arange(first * 50, first * 50 + 50))
    stats = cache.stats()
    assert stats.memory_bytes - empty <= 8 * 150_000 + 200 * stats.nodes


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
    failures = []

    def work(thread):
        rng = np.random.default_rng(thread)
        try:
            for turn in range(300):
                prompt = rng.integers(0, 3, 20)
                handle = cache.match(prompt).handle
                try:
                    cache.lock(handle)
                except ValueError:  # another thread evicted it in between
                    continue
                cache.insert(prompt, np.arange(20) + 20 * (300 * thread + turn))
                cache.unlock(handle)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert cache.protected_size == 0
    cache.check()
