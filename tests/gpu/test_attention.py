"""decode_attention on a GPU gives what a loop in float64 says: eagerly, in graphs, in any batch."""

from itertools import product

import pytest
import torch

from commlib.kernels import decode_attention, store
from commlib.kernels.attention import Call, in_pages
from commlib.kernels.attention_gpu import Tuning, launch
from tests.gpu.conftest import GPUS
from tests.kernels.attention_problem import TYPES, random_problem

NEEDS_GPUS = 1
DEVICE = "cuda:0"
NEAR = {torch.bfloat16: 1.5e-2, torch.float16: 3e-3, torch.float32: 2e-5}  # of the largest value


def near(problem, found):
    assert problem.error(found) <= NEAR[problem.q.dtype], problem.options


@pytest.mark.parametrize("part", range(10))
def test_random_tables(part):
    """A shape for each part, so that little is compiled; tables, lengths, holes and NaN are new each time."""
    page, group, dim = list(product((1, 16, 64), (1, 8), (64, 128)))[part]
    fixed = {"page": page, "group": group, "dim": dim, "kv_heads": 2, "dtype": torch.bfloat16, "layout": "NHD"}
    fixed |= {"integers": torch.int32, "heads": False, "indexed": part % 2 == 0, "started": part % 4 > 1}
    for at in range(12):
        problem = random_problem(1000 * part + at, 600, fp8=at % 10 == 9, **fixed)
        for options in ({}, {"split_tokens": 64}):
            near(problem, problem.call(DEVICE, **options))


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("dim", [8, 64, 80, 128, 256])
def test_every_type_and_head_dim(dim, dtype, fp8):
    page, group = {8: (3, 2), 64: (1, 1), 80: (16, 3), 128: (64, 8), 256: (16, 16)}[dim]
    problem = random_problem(dim, 300, dim=dim, dtype=dtype, fp8=fp8, page=page, group=group)
    near(problem, problem.call(DEVICE))


@pytest.mark.parametrize("group", [1, 2, 4, 7, 8, 16, 20, 64])
def test_every_group_of_heads(group):
    problem = random_problem(group, 500, group=group, dtype=torch.bfloat16, page=16, dim=128)
    near(problem, problem.call(DEVICE))
    near(problem, problem.call(DEVICE, split_tokens=128))


def on_gpu(problem):
    """Return a call of the problem without its options."""
    tensors = (problem.q, problem.k_cache, problem.v_cache, problem.tables, problem.lengths)
    q, k, v, tables, lengths = (x.to(DEVICE) for x in tensors)
    dim = q.shape[2]
    caches = (in_pages(k, dim, False), in_pages(v, dim, False))
    return Call(torch.empty_like(q), q, *caches, tables, lengths, None, None, dim**-0.5)


PLAIN = {"dtype": torch.float16, "layout": "NHD", "fp8": False, "dim": 128, "indexed": False, "started": False}


@pytest.mark.parametrize("spans", [1, 2, 7, 40])
@pytest.mark.parametrize(("block", "warps", "stages"), [(32, 4, 3), (64, 4, 2), (64, 8, 3), (128, 8, 2)])
def test_every_way_to_divide_the_work(block, warps, stages, spans):
    problem = random_problem(spans, 900, **PLAIN)
    call = on_gpu(problem)
    launch(call, Tuning(block, warps, stages, spans=spans))
    near(problem, call.out)


@pytest.mark.skipif(GPUS > 0 and torch.cuda.get_device_capability() < (9, 0), reason="needs sm_90")
def test_spans_that_are_added_up_early_are_all_there():
    problem = random_problem(3, 900, **PLAIN, queries=7)
    call, early = on_gpu(problem), Tuning(64, 4, 3, spans=16, early=True)
    launch(call, early)
    near(problem, call.out)
    expected, graph = call.out.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            launch(call, early)
    for _ in range(50):
        call.out.zero_()
        graph.replay()
        assert torch.equal(call.out, expected)


def test_no_query_and_no_key():
    problem = random_problem(0, 64, layout="NHD", dtype=torch.bfloat16, indexed=False, started=False)
    problem.lengths.zero_()
    for options in ({}, {"split_tokens": 16}):
        out = torch.full_like(problem.q, 7, device=DEVICE)
        assert (problem.call(DEVICE, out=out, **options) == 0).all()
    problem.q, problem.lengths = problem.q[:0], problem.lengths[:0]
    assert problem.call(DEVICE).shape == problem.q.shape


@pytest.mark.parametrize("split_tokens", [None, 64])
def test_a_graph_replays_with_the_lengths_and_tables_of_then(split_tokens):
    problem = random_problem(2, 700, dtype=torch.bfloat16, layout="NHD", page=16, queries=7, indexed=False)
    there = random_problem(2, 700, dtype=torch.bfloat16, layout="NHD", page=16, queries=7, indexed=False)
    for name in ("q", "k_cache", "v_cache", "tables", "lengths"):
        setattr(there, name, getattr(there, name).to(DEVICE))
    there.options = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in there.options.items()}
    out = torch.empty_like(there.q)
    there.call(DEVICE, out=out, split_tokens=split_tokens)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        there.call(DEVICE, out=out, split_tokens=split_tokens)
    for lengths in ([0] * 7, [1, 700, 0, 3, 16, 17, 699], [700] * 7):
        problem.lengths[:] = torch.tensor(lengths)
        there.lengths.copy_(problem.lengths)
        for cache in ("k_cache", "v_cache"):  # what was poisoned may be seen now
            values = torch.randn(getattr(problem, cache).shape).to(getattr(problem, cache).dtype)
            setattr(problem, cache, values)
            getattr(there, cache).copy_(values)
        out.fill_(7)
        graph.replay()
        near(problem, out)


def test_it_has_the_same_bits_in_every_run():
    problem = random_problem(4, 3000, dtype=torch.bfloat16, layout="NHD", queries=7, dim=128, group=8)
    for options in ({}, {"split_tokens": 256}):
        first = problem.call(DEVICE, **options)
        assert all(torch.equal(problem.call(DEVICE, **options), first) for _ in range(20))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_with_split_tokens_a_row_depends_neither_on_the_batch_nor_on_the_width(dtype):
    fixed = {"layout": "NHD", "indexed": False, "started": False, "holes": False, "page": 16, "dim": 64}
    problem = random_problem(3, 900, dtype=dtype, queries=7, **fixed)
    together = problem.call(DEVICE, split_tokens=64)
    q, k, v, lengths = (x.to(DEVICE) for x in (problem.q, problem.k_cache, problem.v_cache, problem.lengths))
    for at in range(7):
        pages = max(1, -(-int(problem.lengths[at]) // 16))
        for width in (pages, 4096):
            wide = torch.zeros(1, width, dtype=problem.tables.dtype)
            wide[0, :pages] = problem.tables[at, :pages]
            part = slice(at, at + 1)
            alone = decode_attention(q[part], k, v, wide.to(DEVICE), lengths[part], split_tokens=64, **problem.options)
            assert torch.equal(alone, together[part])


def test_caches_beyond_two_to_the_31_elements():
    slots = (1 << 31) // 256 + 64
    k_cache, v_cache = torch.zeros(2, slots, 2, 128, dtype=torch.bfloat16, device=DEVICE)
    k, v = torch.randn(2, 30, 2, 128, dtype=torch.bfloat16, device=DEVICE)
    where = torch.arange(slots - 30, slots, device=DEVICE)
    store(k_cache, v_cache, where, k, v)
    q = torch.randn(1, 4, 128, dtype=torch.bfloat16, device=DEVICE)
    found = decode_attention(q, k_cache, v_cache, where[None], torch.tensor([30], device=DEVICE))
    small = decode_attention(q, k, v, torch.arange(30, device=DEVICE)[None], torch.tensor([30], device=DEVICE))
    assert torch.equal(found, small)
