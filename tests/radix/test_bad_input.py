"""Bad input to a RadixCache is a clear error, and the tree is as it was."""

import numpy as np
import pytest
import torch

from commlib.radix import RadixCache
from tests.radix.pair import filled, ids

BAD = {
    "ids in a set": (lambda c, h: c.match({1, 2}), TypeError, "ids is of type set, but must be a list of int, or a"),
    "text in a list": (lambda c, h: c.match([1, "2"]), TypeError, r"ids\[1\] is of type str, but must be an int"),
    "a list in a list": (lambda c, h: c.insert([1], [[2]]), TypeError, r"slots\[0\] is of type list"),
    "large id in a list": (lambda c, h: c.insert([9, 2**31], [1, 2]), ValueError, r"ids\[1\] is 2147483648"),
    "endless slot in a list": (lambda c, h: c.insert([9], [2**64]), ValueError, r"slots\[0\] does not fit 64 bits"),
    "ids as text": (lambda c, h: c.match("12"), TypeError, "ids is of type str"),
    "ids in bytes": (lambda c, h: c.match(b"12"), ValueError, "format 'B', but must be int32 or int64"),
    "float ids": (lambda c, h: c.match(torch.zeros(2)), ValueError, "is neither int32 nor int64; pass ids.long"),
    "float array": (lambda c, h: c.match(np.zeros(2)), ValueError, "format 'd'"),
    "int16 ids": (lambda c, h: c.match(torch.zeros(2).short()), ValueError, "neither int32"),
    "unsigned ids": (lambda c, h: c.match(np.zeros(2, np.uint32)), ValueError, "format 'I'"),
    "big-endian ids": (lambda c, h: c.match(np.zeros(2, ">i4")), ValueError, "format '>i'"),
    "2-D ids": (lambda c, h: c.match(torch.zeros(2, 2).long()), ValueError, "ids has 2 dimensions, but must have 1"),
    "2-D array": (lambda c, h: c.match(np.zeros((2, 2), np.int32)), ValueError, "ids has 2 dimensions"),
    "0-D ids": (lambda c, h: c.match(torch.tensor(3)), ValueError, "ids has 0 dimensions"),
    "strided ids": (lambda c, h: c.match(torch.arange(6)[::2]), ValueError, "2 apart, but must be 1"),
    "strided array": (lambda c, h: c.match(np.arange(6)[::-1]), ValueError, "-1 apart"),
    "meta ids": (lambda c, h: c.match(torch.empty(3, device="meta").long()), ValueError, "without plain memory"),
    "lengths": (lambda c, h: c.insert(ids(1, 2), ids(1)), ValueError, "ids has 2 tokens, but slots has 1"),
    "large id": (lambda c, h: c.insert(ids(1, 2**31), ids(1, 2)), ValueError, r"ids\[1\] is 2147483648"),
    "large slot": (lambda c, h: c.insert(ids(7, 8), ids(1, 2**31)), ValueError, r"slots\[1\] is 2147483648"),
    "negative slot": (lambda c, h: c.insert(ids(7), np.array([-1], np.int32)), ValueError, r"slots\[0\] is -1"),
    "float slots": (lambda c, h: c.insert(ids(7), torch.zeros(1)), ValueError, "slots is neither int32"),
    "unlock below zero": (lambda c, h: c.unlock(h), ValueError, "is not locked, but unlock.. takes back one lock"),
    "unlock of a passage": (lambda c, h: c.unlock(c.match(ids(1, 2)).handle), ValueError, "is not locked"),
    "dead handle": (lambda c, h: c.lock(h + 2**32), ValueError, "is dead"),
    "no such node": (lambda c, h: c.lock(4000), ValueError, "is dead"),
    "negative handle": (lambda c, h: c.lock(-1), ValueError, "is dead"),
    "endless handle": (lambda c, h: c.lock(2**80), ValueError, "does not fit 64 bits"),
    "text as handle": (lambda c, h: c.lock("a"), TypeError, "handle is of type str"),
    "evict too much": (lambda c, h: c.evict(5), ValueError, "asked for 5 tokens, but 1 are evictable and 3 locked"),
    "evict at most a negative": (lambda c, h: c.evict(-1, at_most=True), ValueError, "asked for -1 tokens"),
    "evict a negative": (lambda c, h: c.evict(-1), ValueError, "asked for -1 tokens"),
    "evict a float": (lambda c, h: c.evict(1.5), TypeError, "n is of type float"),
    "short out": (lambda c, h: c.match(ids(1, 2), out=torch.zeros(1).int()), ValueError, "out has room for 1 slot"),
    "list as out": (lambda c, h: c.match(ids(1), out=[0]), TypeError, "out is of type list"),
    "float out": (lambda c, h: c.match(ids(1), out=torch.zeros(1)), ValueError, "out is neither int32"),
    "read-only out": (lambda c, h: c.match(ids(1), out=memoryview(bytes(4)).cast("i")), ValueError, "for writing"),
    "slots as floats": (lambda c, h: c.slots_as(torch.float32), ValueError, "slots_as is torch.float32, but must be"),
    "namespace": (lambda c, h: c.match(ids(1), namespace=1.5), TypeError, "a namespace holds a float"),
    "true as namespace": (lambda c, h: c.match(ids(1), namespace=True), TypeError, "a namespace holds a bool"),
    "priority": (lambda c, h: c.insert(ids(1), ids(1), priority="high"), TypeError, "priority is of type str"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_clear_error_and_changes_nothing(case):
    call, kind, words = BAD[case]
    cache, (locked, handle) = filled((1, 2, 3), (1, 2, 3, 4))
    cache.match(ids(1, 2))  # a node in front that is locked only through what is below it
    cache.lock(locked)
    before = cache.dump()
    with pytest.raises(kind, match=words) as caught:
        call(cache, handle)
    assert "\n" not in str(caught.value)
    cache.check()
    assert [line.split("used")[0] for line in cache.dump().splitlines()] == [
        line.split("used")[0] for line in before.splitlines()
    ]


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        (dict(policy="random"), ValueError, "policy is 'random', but must be one of lru, lfu"),
        (dict(eviction="page"), ValueError, "eviction is 'page'"),
        (dict(page_size=0), ValueError, "page_size is 0"),
        (dict(page_size=2**32), ValueError, "page_size is 4294967296"),
        (dict(page_size="4"), TypeError, "page_size is of type str"),
        (dict(capacity=-1), ValueError, "capacity is -1"),
    ],
)
def test_bad_options_are_refused(options, kind, words):
    with pytest.raises(kind, match=words):
        RadixCache(**options)
