"""ids and slots come in any form, and slots come back as the caller wants them."""

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
