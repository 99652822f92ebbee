"""RadixCache takes ids and slots on a GPU, and gives slots back there."""

import pytest
import torch

from commlib.kernels import prefix_match
from commlib.radix import RadixCache
from commlib.radix.sglang import CacheInitParams, SGLangRadixCache
from tests.radix.pools import Allocator, Rows, request, row_of
from tests.radix.test_forms import every_way_out

NEEDS_GPUS = 1


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_slots_come_back_on_the_gpu(dtype):
    freed = []
    cache = RadixCache(capacity=4, on_free=freed.append).slots_as(dtype, "cuda")
    outs = list(every_way_out(cache, freed))
    assert {(out.dtype, out.device.type) for out in outs} == {(dtype, "cuda")}
    assert [out.tolist() for out in outs] == [[0, 1, 6], [0], [6], [1], [0, 7, 8], [9]]


def test_ids_and_slots_are_read_from_the_gpu_after_the_work_that_writes_them():
    cache, stream = RadixCache(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        tokens, slots = torch.arange(4096, device="cuda"), torch.arange(4096, device="cuda") * 2
        cache.insert(tokens, slots[: len(tokens)])
        assert cache.match(tokens).slots.tolist() == list(range(0, 8192, 2))
    assert cache.insert(tokens[::2], slots[::2]).existing == 1  # strided: .cpu() makes it dense
    assert prefix_match(tokens, tokens.cpu()) == 4096


def test_an_out_on_the_gpu_is_refused():
    cache = RadixCache()
    cache.insert([1], [2])
    with pytest.raises(ValueError, match=r"out is on a device .*must be in the CPU's memory; pass a tensor on the CPU"):
        cache.match([1], out=torch.zeros(1, dtype=torch.int64, device="cuda"))


def test_requests_of_sglang_have_their_slots_on_the_gpu():
    allocator = Allocator(16, 2, device="cuda:0")
    pools = dict(req_to_token_pool=Rows("cuda:0"), token_to_kv_pool_allocator=allocator)
    cache = SGLangRadixCache(CacheInitParams(**pools, page_size=2))
    first, second = request(cache, [1, 2, 3, 4]), request(cache, [1, 2, 3], row=1)
    cache.cache_finished_req(first)
    cache.cache_unfinished_req(second)
    assert (second.prefix_indices.device, second.prefix_indices.tolist()) == (cache.device, [0, 1, 6])
    assert (row_of(cache, second, 4), allocator.took_back()) == ([0, 1, 6, 7], [4, 5])
    cache.cache_finished_req(second)
    assert (allocator.took_back(), cache.evictable_size()) == ([6, 7], 4)
