"""commlib.kernels on a GPU gives what it gives on the CPU, bit by bit: eagerly, in graphs, on any stream."""

from itertools import product

import pytest
import torch

from commlib.errors import Unsupported
from commlib.kernels import index, metadata, out_of_range_count, store
from tests.kernels.elements import random_of, same_bits
from tests.kernels.test_store import floats_of

NEEDS_GPUS = 1
DEVICE = "cuda:0"


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# index


ROWS = 500
INDEX_CASES = [
    *product((1, 2, 4, 6, 16, 66, 128, 514, 1026, 2048, 4096, 16384), (1, 3, 200), (torch.int64,)),
    (8192, 3000, torch.int32),
    (8192, 1, torch.int32),
    (100, 3000, torch.int32),
]


@pytest.mark.parametrize(("row_bytes", "count", "id_type"), INDEX_CASES)
def test_index_gathers_rows_of_any_width(row_bytes, count, id_type):
    table = random_of(torch.uint8, (ROWS, row_bytes), 0)
    ids = torch.randint(-3, ROWS + 3, (count,), generator=seeded(1), dtype=id_type)
    same_bits(index(table.to(DEVICE), ids.to(DEVICE)), index(table, ids))


@pytest.mark.parametrize("offset", [1, 2, 4, 8])
def test_index_takes_rows_at_any_address(offset):
    memory = random_of(torch.uint8, (ROWS, 1024 + 16), 0)
    ids = torch.randint(0, ROWS, (77,), generator=seeded())
    table = memory[:, offset : offset + 1024]
    same_bits(index(memory.to(DEVICE)[:, offset : offset + 1024], ids.to(DEVICE)), index(table, ids))


@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
def test_index_masks_the_rows_of_other_shards(id_type):
    table = random_of(torch.bfloat16, (100, 512), 0)
    limits = torch.iinfo(id_type)
    ids = torch.tensor([[50, 149, 150], [limits.min, limits.max, 49]], dtype=id_type)
    ours = index(table.to(DEVICE), ids.to(DEVICE), vocab_range=(50, 100))
    same_bits(ours, index(table, ids, vocab_range=(50, 100)))


def test_index_counts_and_refuses_ids_outside():
    table = torch.ones(10, 64, device=DEVICE)
    ids = torch.tensor([[0, 10], [-1, 9]], device=DEVICE)
    out_of_range_count(DEVICE)
    index(table, ids, out_of_range="count")
    index(table, ids)
    assert out_of_range_count(DEVICE, reset=False) == 2
    assert out_of_range_count(DEVICE) == 2
    assert out_of_range_count(DEVICE) == 0
    out = torch.full((2, 2, 64), 7.0, device=DEVICE)
    with pytest.raises(ValueError, match=r"ids\[0, 1\] names no row, but weights has 10 rows"):
        index(table, ids, out=out, out_of_range="raise")
    assert (out == 7).all()
    index(table, ids.clamp(0, 9), out=out, out_of_range="raise")
    assert (out == 1).all()


def test_index_takes_ids_of_any_strides_and_none():
    table = random_of(torch.float32, (ROWS, 64), 0)
    ids = torch.randint(0, ROWS, (6, 8), generator=seeded())
    same_bits(index(table.to(DEVICE), ids.to(DEVICE).t()[::2]), index(table, ids.t()[::2]))
    assert index(table.to(DEVICE), ids.to(DEVICE)[:0]).shape == (0, 8, 64)


def test_rows_beyond_two_to_the_31_elements():
    table = torch.zeros(300_000, 8192, dtype=torch.uint8, device=DEVICE)
    table[-1] = 5
    assert (index(table, torch.tensor([299_999], device=DEVICE)) == 5).all()


# store

SLOTS = 4096


def store_case(count, seed, repeated=False, slot_type=torch.int64):
    slots = torch.randint(-2, SLOTS + 3, (count,), generator=seeded(seed))
    if not repeated:
        slots = torch.randperm(SLOTS, generator=seeded(seed))[:count]
    return slots.to(slot_type)


def on_both(k_cache, v_cache, slots, k, v, **options):
    """Store on the CPU and on the GPU, and compare the caches."""
    theirs = [None if x is None else x.to(DEVICE) for x in (k_cache, v_cache)]
    store(k_cache, v_cache, slots.cpu(), k, v, **options)
    there = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    store(*theirs, slots.to(DEVICE), k.to(DEVICE), v.to(DEVICE), **there)
    for ours, expected in zip(theirs, (k_cache, v_cache), strict=True):
        if expected is not None:
            same_bits(ours, expected)


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("slot_type", [torch.int32, torch.int64])
@pytest.mark.parametrize(("k_width", "v_width"), [(128, 128), (1024, 1024), (576, 512), (33, 7), (6, 2048)])
@pytest.mark.parametrize("count", [1, 9, 300, 1000, 4000])
def test_store_scatters_rows(count, k_width, v_width, slot_type, repeated):
    """With repeated slots the last row stays, as long as tokens compare themselves with all others."""
    if repeated and count > 2048:
        pytest.skip("whose row stays is not defined for so many")
    slots = store_case(count, 1, repeated, slot_type)
    if repeated:
        slots %= 50
    k, v = random_of(torch.int16, (count, k_width), 1), random_of(torch.int16, (count, v_width), 2)
    k_cache, v_cache = torch.zeros(SLOTS, k_width, dtype=k.dtype), torch.zeros(SLOTS, v_width, dtype=k.dtype)
    on_both(k_cache, v_cache, slots, k, v)


@pytest.mark.parametrize("slot_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("first, step", [(0, 2), (1, 1)], ids=["strided", "unaligned"])
@pytest.mark.parametrize("count", [3, 200, 1000])
def test_store_finds_repeated_slots_of_any_view(count, first, step, slot_type):
    slots = store_case(count, 1, True, slot_type) % 50
    view = torch.full((2 * count + 1,), -1, dtype=slot_type, device=DEVICE)[first::step][:count]
    view.copy_(slots)
    k, v = random_of(torch.int16, (count, 128), 1), random_of(torch.int16, (count, 128), 2)
    on_both(*(torch.zeros(SLOTS, 128, dtype=k.dtype) for _ in range(2)), view, k, v)


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page_size", [1, 16, 48])
def test_store_knows_pages(page_size, layout, unique):
    heads, width, count = 4, 64, 700
    shape = (32, page_size, heads, width) if layout == "NHD" else (32, heads, page_size, width)
    slots = torch.randperm(32 * page_size, generator=seeded())[:count]
    count = len(slots)
    k, v = (random_of(torch.bfloat16, (count, heads, width), seed) for seed in (1, 2))
    caches = torch.zeros(shape, dtype=k.dtype), torch.zeros(shape, dtype=k.dtype)
    on_both(*caches, slots, k, v, layout=layout, unique=unique)


def test_store_claims_slots_of_many_tokens_in_a_graph_too():
    """Thousands of tokens take a launch ahead and memory of their own."""
    count = 6000
    cache, values = torch.zeros(SLOTS, 64, device=DEVICE), torch.zeros(SLOTS, 64, device=DEVICE)
    rows = torch.arange(count, device=DEVICE, dtype=torch.float32).view(-1, 1).repeat(1, 64)
    slots = torch.zeros(count, dtype=torch.int64, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        store(cache, values, slots, rows, -rows)
    for seed in range(5):
        slots.copy_(torch.randint(0, 1000, (count,), generator=seeded(seed)))
        cache.fill_(-1)
        graph.replay()
        winner = cache[:, 0].long()
        taken = torch.zeros(SLOTS, dtype=torch.bool, device=DEVICE)
        taken[slots] = True
        assert torch.equal(winner >= 0, taken)
        assert torch.equal(slots[winner[taken]], taken.nonzero().view(-1))
        assert torch.equal(cache[taken], winner[taken].float().view(-1, 1).expand(-1, 64))
        assert torch.equal(values[taken], -cache[taken])


def test_store_skips_and_counts():
    slots = torch.tensor([-1, 0, 5, SLOTS, 7, 2**40, -(2**63)])
    k, v = random_of(torch.float16, (7, 256), 1), random_of(torch.float16, (7, 256), 2)
    out_of_range_count(DEVICE, kernel="store")
    on_both(torch.zeros(SLOTS, 256, dtype=k.dtype), torch.zeros(SLOTS, 256, dtype=k.dtype), slots, k, v, skip=(0, 7))
    assert out_of_range_count(DEVICE, kernel="store") == 2


@pytest.mark.parametrize("count", [5, 600, 3000])
@pytest.mark.parametrize("width", [64, 15])
@pytest.mark.parametrize("of", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("to", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("scales", ["none", "numbers", "tensors", "heads"])
def test_store_rounds_to_8_bit_floats(scales, to, of, width, count):
    heads = 4
    k, v = floats_of(of, (count, heads, width), 1), floats_of(of, (count, heads, width), 2)
    caches = [torch.zeros(SLOTS, heads, width, dtype=torch.uint8).view(to) for _ in "kv"]
    given = {
        "none": {},
        "numbers": {"k_scale": 0.37, "v_scale": 3.0},
        "tensors": {"k_scale": torch.tensor([0.11]), "v_scale": torch.tensor([2.3])},
        "heads": {"k_scale": torch.rand(heads, generator=seeded()) + 0.1, "v_scale": torch.tensor(1.7).view(1)},
    }[scales]
    on_both(*caches, store_case(count, 3), k, v, **given)


def test_store_puts_both_parts_into_one_row():
    count = 900
    nope, rope = random_of(torch.bfloat16, (count, 512), 1), random_of(torch.bfloat16, (count, 64), 2)
    on_both(torch.zeros(SLOTS, 576, dtype=nope.dtype), None, store_case(count, 1), nope, rope)


# metadata


def batches():
    generator = seeded(5)
    for _ in range(60):
        size = int(torch.randint(0, 700, (1,), generator=generator))
        kind = torch.int32 if size % 2 else torch.int64
        extend = torch.randint(-1, 9, (size,), generator=generator)
        if size % 5 == 0:
            extend.fill_(4)
        seq = extend.clamp(min=0) + torch.randint(-3, 5000, (size,), generator=generator)
        yield extend.to(kind), seq.to(kind)


def same_metadata(ours, expected, total):
    assert ours.total.tolist() == [total]
    for name in ("expanded", "clipped", "positions", "request_index"):
        assert torch.equal(getattr(ours, name)[:total].cpu(), getattr(expected, name)[:total]), name
    assert torch.equal(ours.cu_seqlens.cpu(), expected.cu_seqlens)


def test_metadata_is_what_the_cpu_says():
    for extend, seq in batches():
        expected = metadata(extend, seq, 2048)
        total = int(expected.total)
        ours = metadata(extend.to(DEVICE), seq.to(DEVICE), 2048, capacity=total + 100, pad=-7)
        same_metadata(ours, expected, total)
        for name in ("expanded", "clipped", "positions", "request_index"):
            assert (getattr(ours, name)[total:] == -7).all()


@pytest.mark.parametrize("requests", [0, 1, 31, 33, 5000])
def test_metadata_of_a_uniform_window(requests):
    seq = torch.randint(0, 9000, (requests,), generator=seeded())
    expected = metadata(3, seq, 100)
    same_metadata(metadata(3, seq.to(DEVICE), 100), expected, 3 * requests)


def test_metadata_counts_tokens_beyond_the_capacity():
    extend, seq = torch.full((40,), 5, device=DEVICE), torch.full((40,), 50, device=DEVICE)
    out_of_range_count(DEVICE, kernel="metadata")
    ours = metadata(extend, seq, 2048, capacity=170)
    assert ours.total.tolist() == [200]
    assert ours.request_index.tolist() == [t // 5 for t in range(170)]
    assert out_of_range_count(DEVICE, kernel="metadata") == 30


# Streams and graphs


def test_graphs_replay_with_what_the_tensors_hold_then():
    table = random_of(torch.bfloat16, (ROWS, 512), 0).to(DEVICE)
    ids = torch.zeros(64, dtype=torch.int64, device=DEVICE)
    rows = torch.empty(64, 512, dtype=table.dtype, device=DEVICE)
    cache = torch.zeros(SLOTS, 512, dtype=table.dtype, device=DEVICE)
    values = torch.zeros_like(cache)
    extend, seq = (torch.full((16,), value, dtype=torch.int32, device=DEVICE) for value in (1, 9))
    lists = metadata(extend, seq, 2048, capacity=128, pad=0)

    def step():
        index(table, ids, out=rows)
        store(cache, values, ids, rows, rows)
        metadata(extend, seq, 2048, out=lists, pad=0)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # the first call of each here is captured, too
        step()
    for seed in range(20):
        ids.copy_(torch.randperm(ROWS, generator=seeded(seed))[:64])
        extend.copy_(torch.randint(0, 8, (16,), generator=seeded(seed)))
        cache.zero_()
        graph.replay()
        assert torch.equal(cache[ids].view(torch.int16), table[ids].view(torch.int16))
        assert lists.total.tolist() == [int(extend.sum())]


def test_they_run_on_the_callers_stream():
    table = random_of(torch.uint8, (ROWS, 4096), 0).to(DEVICE)
    stream = torch.cuda.Stream()
    ids = torch.zeros(4096, dtype=torch.int64, device=DEVICE)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # the ids change long after the call was made
        ids.fill_(7)
        rows = index(table, ids)
    stream.synchronize()
    assert torch.equal(rows, table[7].expand(4096, -1))


def test_raise_is_refused_in_a_capture():
    table, ids = torch.ones(10, 64, device=DEVICE), torch.tensor([1], device=DEVICE)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        index(table, ids)
        with pytest.raises(Unsupported, match="a graph being captured cannot"):
            index(table, ids, out_of_range="raise")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_they_run_where_the_tensors_are():
    table = random_of(torch.uint8, (ROWS, 512), 0)
    ids = torch.randint(0, ROWS, (9,), generator=seeded())
    assert torch.cuda.current_device() == 0
    same_bits(index(table.to("cuda:1"), ids.to("cuda:1")), index(table, ids))
