"""ids and slots come in any form; bad input is a clear error, and the tree is as it was."""

from array import array

import numpy as np
import pytest
import torch

from commlib.errors import Unsupported
from commlib.radix import Match, RadixCache
from tests.radix.pair import filled, ids

FORMS = {
    "numpy": lambda x: x,
    "tensor": torch.from_numpy,
    "memoryview": memoryview,
    "array": lambda x: array("i" if x.itemsize == 4 else "q", x.tolist()),
    "list": lambda x: x.tolist(),
    "tuple": lambda x: tuple(x.tolist()),
    "list of numpy integers": list,
}


@pytest.mark.parametrize("wide", [np.int32, np.int64])
@pytest.mark.parametrize("form", FORMS)
def test_ids_and_slots_come_in_any_form(form, wide):
    made, cache = FORMS[form], RadixCache()
    cache.insert(made(np.array([5, 6, 7], wide)), made(np.array([1, 2, 3], wide)))
    result = cache.match(made(np.array([5, 6, 8], wide)))
    assert isinstance(result, Match)
    assert result.slots.dtype == torch.int32
    assert result.slots.tolist() == [1, 2]
    assert cache.match_many([made(np.array([5, 6, 7], wide)), []]).tolist() == [3, 0]


def test_out_takes_the_slots():
    cache, _ = filled((1, 2, 3))
    for out in (torch.full((4,), -1), np.full(4, -1, np.int32)):
        result = cache.match(ids(1, 2, 9, 9), out=out)
        assert result.slots is out
        assert out.tolist() == [0, 1, -1, -1]


def every_way_out(cache, freed):
    """The slots that each call of a cache with a capacity of four returns or tells of."""
    cache.insert([1, 2], [0, 1])
    yield from (cache.insert_and_match([1, 2, 3], [4, 5, 6]).slots, cache.match([1]).slots)
    cache.insert([7, 8], [7, 8])
    yield from (freed.pop(), cache.evict(1), cache.evict(9, at_most=True))
    cache.insert([1], [9])
    cache.reset()
    yield freed.pop()


@pytest.mark.parametrize(("dtype", "device"), [(torch.int32, "cpu"), (torch.int64, "cpu"), (torch.int64, "meta")])
def test_slots_come_back_as_wanted(dtype, device):
    freed = []
    cache = RadixCache(capacity=4, on_free=freed.append).slots_as(dtype, device)
    outs = list(every_way_out(cache, freed))
    assert {(out.dtype, out.device.type) for out in outs} == {(dtype, device)}
    if device == "cpu":
        assert [out.tolist() for out in outs] == [[0, 1, 6], [0], [6], [1], [0, 7, 8], [9]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_slots_on_a_gpu_that_is_not_there_are_refused():
    cache, _ = filled((1, 2))
    with pytest.raises(Unsupported, match="device of slots_as is cuda, which torch cannot use here"):
        cache.slots_as(torch.int64, "cuda")
    assert cache.match([1]).slots.device.type == "cpu"


BAD = {
    "ids in a set": (lambda c, h: c.match({1, 2}), TypeError, "ids is of type set, but must be a list of int, or a"),
    "text in a list": (lambda c, h: c.match([1, "2"]), TypeError, r"ids\[1\] is of type str, but must be an int"),
    "large id in a list": (lambda c, h: c.insert([9, 2**31], [1, 2]), ValueError, r"ids\[1\] is 2147483648"),
    "ids in bytes": (lambda c, h: c.match(b"12"), ValueError, "format 'B', but must be int32 or int64"),
    "float ids": (lambda c, h: c.match(torch.zeros(2)), ValueError, "is neither int32 nor int64; pass ids.long"),
    "unsigned ids": (lambda c, h: c.match(np.zeros(2, np.uint32)), ValueError, "format 'I'"),
    "2-D ids": (lambda c, h: c.match(torch.zeros(2, 2).long()), ValueError, "ids has 2 dimensions, but must have 1"),
    "strided ids": (lambda c, h: c.match(torch.arange(6)[::2]), ValueError, "2 apart, but must be 1"),
    "meta ids": (lambda c, h: c.match(torch.empty(3, device="meta").long()), ValueError, "without plain memory"),
    "lengths": (lambda c, h: c.insert(ids(1, 2), ids(1)), ValueError, "ids has 2 tokens, but slots has 1"),
    "large id": (lambda c, h: c.insert(ids(1, 2**31), ids(1, 2)), ValueError, r"ids\[1\] is 2147483648"),
    "negative slot": (lambda c, h: c.insert(ids(7), np.array([-1], np.int32)), ValueError, r"slots\[0\] is -1"),
    "unlock below zero": (lambda c, h: c.unlock(h), ValueError, "is not locked, but unlock.. takes back one lock"),
    "dead handle": (lambda c, h: c.lock(h + 2**32), ValueError, "is dead"),
    "handle of no node": (lambda c, h: c.lock(2**31 - 1), ValueError, "handle 2147483647 is dead"),
    "endless handle": (lambda c, h: c.lock(2**80), ValueError, "does not fit 64 bits"),
    "text as handle": (lambda c, h: c.lock("a"), TypeError, "handle is of type str"),
    "evict too much": (lambda c, h: c.evict(5), ValueError, "asked for 5 tokens, but 1 are evictable and 3 locked"),
    "evict a negative": (lambda c, h: c.evict(-1), ValueError, "asked for -1 tokens"),
    "evict a float": (lambda c, h: c.evict(1.5), TypeError, "n is of type float"),
    "short out": (lambda c, h: c.match(ids(1, 2), out=torch.zeros(1).int()), ValueError, "out has room for 1 slot"),
    "list as out": (lambda c, h: c.match(ids(1), out=[0]), TypeError, "out is of type list"),
    "read-only out": (lambda c, h: c.match(ids(1), out=memoryview(bytes(4)).cast("i")), ValueError, "for writing"),
    "namespace": (lambda c, h: c.match(ids(1), namespace=1.5), TypeError, "a namespace holds a float"),
    "priority": (lambda c, h: c.insert(ids(1), ids(1), priority="high"), TypeError, "priority is of type str"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_clear_error_and_changes_nothing(case):
    call, kind, words = BAD[case]
    cache, (locked, handle) = filled((1, 2, 3), (1, 2, 3, 4))
    cache.match(ids(1, 2))  # a node in front that is locked only through what is below it
    cache.lock(locked)
    before = [line.split("used")[0] for line in cache.dump().splitlines()]
    with pytest.raises(kind, match=words) as caught:
        call(cache, handle)
    assert "\n" not in str(caught.value)
    cache.check()
    assert [line.split("used")[0] for line in cache.dump().splitlines()] == before


def test_a_buffer_that_was_refused_can_grow_again():
    numbers = array("d", [1.0])
    with pytest.raises(ValueError, match="ids"):
        RadixCache().match(numbers)
    numbers.append(2.0)  # BufferError as long as anybody holds what it exports


def test_bad_options_are_refused():
    for name, value in dict(policy="random", eviction="page", page_size=0, capacity=-1).items():
        with pytest.raises(ValueError, match=f"{name} is '?{value}"):
            RadixCache(**{name: value})
    with pytest.raises(TypeError, match="page_size is of type str"):
        RadixCache(page_size="4")
    with pytest.raises(ValueError, match="make it with events=True"):
        RadixCache().take_events()
