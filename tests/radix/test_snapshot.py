"""A restored cache goes on as the original would have; damaged bytes are an error and never a crash."""

import random
import struct

import numpy as np
import pytest

from commlib.radix import POLICIES, RadixCache


def grown(seed=0, **options):
    rng = np.random.default_rng(seed)
    cache = RadixCache(page_size=2, **options)
    for i in range(40):
        prompt = rng.integers(0, 2, 12)
        cache.insert(prompt, np.arange(12) + 12 * i, namespace=(None, "a", ("b", 1))[i % 3], priority=i % 4)
        cache.match(rng.integers(0, 2, 12))
        if i % 8 == 7:
            cache.evict(3)
    return cache


def checksum(body):
    total = 1469598103934665603
    for at in range(0, len(body), 8):
        word = int.from_bytes(body[at : at + 8], "little")
        total = ((total ^ word) * 1099511628211) % 2**64
        total ^= total >> 29
    return total.to_bytes(8, "little")


def order(cache):
    freed = []
    while cache.evictable_size:
        freed += cache.evict(1).tolist()
    return freed


@pytest.mark.parametrize("eviction", ["leaf", "tail"])
@pytest.mark.parametrize("policy", POLICIES)
def test_it_goes_on_as_the_original_would_have(policy, eviction):
    cache = grown(policy=policy, eviction=eviction, capacity=300)
    copy = RadixCache.restore(cache.snapshot())
    copy.check()
    assert repr(copy) == repr(cache)
    assert (copy.capacity, copy.snapshot()) == (300, cache.snapshot())
    for one in (cache, copy):
        one.match(np.zeros(12, np.int64), namespace="a"), one.insert(np.ones(20, np.int64), np.arange(900, 920))
    assert order(copy) == order(cache)


def test_locks_are_not_part_of_it():
    cache = RadixCache()
    handle = cache.insert(np.arange(4), np.arange(4)).handle
    cache.lock(handle)
    copy = RadixCache.restore(cache.snapshot())
    assert (copy.evictable_size, copy.protected_size) == (4, 0)
    with pytest.raises(ValueError, match="is dead"):
        copy.unlock(handle)
    copy.check()


def test_every_flipped_bit_and_every_cut_is_noticed():
    whole, rng, damaged = grown().snapshot(), random.Random(0), []
    for _ in range(600):
        damaged.append(bytearray(whole))
        damaged[-1][rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    for bad in (*damaged, *(whole[:length] for length in (*range(120), *range(120, len(whole), 37)))):
        with pytest.raises(ValueError, match=r"damaged|not a snapshot|version|cut short"):
            RadixCache.restore(bytes(bad))


@pytest.mark.parametrize("name", ["a", "ab", "abcd"])  # bodies that are no whole number of words, and one that is
def test_a_flipped_bit_is_noticed_in_the_last_bytes_before_the_checksum(name):
    cache = RadixCache()
    cache.insert(np.arange(3), np.arange(3), namespace=name)
    for at in range(9, 17):
        damaged = bytearray(cache.snapshot())
        damaged[-at] ^= 1
        with pytest.raises(ValueError, match="damaged"):
            RadixCache.restore(bytes(damaged))


def test_lies_with_a_right_checksum_do_not_crash():
    body = grown().snapshot()[:-8]
    rng = random.Random(1)
    refused = 0
    for turn in range(3000):
        lie = bytearray(body)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(8, len(lie) if turn % 2 else 400) // 4 * 4
            lie[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 2, 3, 7, 2**31, 2**32 - 1, rng.randrange(2**32))))
        if turn % 5 == 0:
            lie = lie[: rng.randrange(len(lie))]
        try:
            RadixCache.restore(bytes(lie) + checksum(bytes(lie))).check()
        except (ValueError, MemoryError):
            refused += 1
    assert refused > 1000


@pytest.mark.parametrize(("at", "value"), [(12, 0), (16, len(POLICIES)), (32, 2**64 - 2)])
def test_a_page_size_policy_or_capacity_that_there_is_not_is_refused(at, value):
    body = bytearray(grown().snapshot()[:-8])
    size = 8 if at == 32 else 4
    body[at : at + size] = value.to_bytes(size, "little")
    with pytest.raises(ValueError, match="options"):
        RadixCache.restore(bytes(body) + checksum(body))


def test_bytes_of_something_else_are_no_snapshot():
    for bad in (bytes(500), b"commlix" + grown().snapshot()[7:]):
        with pytest.raises(ValueError, match="are not a snapshot of a RadixCache"):
            RadixCache.restore(bad)


def test_another_version_is_refused():
    whole = bytearray(grown().snapshot())
    whole[8] = 2
    with pytest.raises(ValueError, match="version 2"):
        RadixCache.restore(bytes(whole))
