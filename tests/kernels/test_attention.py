"""decode_attention on the CPU, and how it divides its work on a GPU, against a loop in float64."""

import pytest
import torch

from commlib.kernels import decode_attention
from commlib.kernels.attention_gpu import spans_for
from tests.kernels.attention_problem import LAYOUTS, TYPES, random_problem

NEAR = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}


def near(problem, found):
    assert (found.shape, found.dtype) == (problem.q.shape, problem.q.dtype)
    assert problem.error(found) <= NEAR[problem.q.dtype], problem


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("fp8", [False, True])
def test_it_is_the_softmax_over_the_keys_of_the_pages(dtype, layout, fp8):
    for seed in range(7):
        problem = random_problem(seed, 70, dtype=dtype, layout=layout, fp8=fp8)
        near(problem, problem.call())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    "scales", [{"k_scale": 0.5}, {"v_scale": torch.tensor([0.5])}, {"scale": 0.0}], ids=["k", "v", "of no score"]
)
@pytest.mark.parametrize("fp8", [False, True])
def test_k_v_or_the_scores_alone_may_have_a_scale_in_a_cache_of_any_type(dtype, scales, fp8):
    problem = random_problem(6, 70, dtype=dtype, fp8=fp8, layout="NHD")
    problem.options = {name: x for name, x in problem.options.items() if name not in ("k_scale", "v_scale")} | scales
    near(problem, problem.call())


def test_no_key_gives_zeros():
    problem = random_problem(1, queries=4, holes=False, indexed=False)
    problem.lengths[:] = torch.tensor([0, 5, -3, 0])
    out = torch.full_like(problem.q, 7)
    assert problem.call(out=out) is out
    assert [bool((row == 0).all()) for row in out] == [True, False, True, True]


@pytest.mark.parametrize("hole", [False, True])
def test_a_length_beyond_the_room_of_the_table_reads_what_there_is(hole: bool) -> None:
    problem = random_problem(
        8, 40, dtype=torch.float32, queries=4, fp8=False, layout="NHD", indexed=False, started=False
    )
    problem.tables[:, 1] = -1 if hole else 0
    problem.k_cache.nan_to_num_()
    problem.v_cache.nan_to_num_()
    problem.lengths[:] = problem.tables.shape[1] * problem.k_cache.shape[1]
    expected = problem.call()
    problem.lengths += 5
    assert torch.equal(problem.call(), expected)


def test_a_row_depends_neither_on_the_batch_nor_on_the_width_of_the_tables():
    problem = random_problem(3, 90, dtype=torch.bfloat16, layout="NHD", queries=7, indexed=False, started=False)
    together = problem.call(split_tokens=32)
    wide = torch.nn.functional.pad(problem.tables, (0, 9), value=0)
    for at in range(7):
        part = slice(at, at + 1)
        tensors = (problem.q[part], problem.k_cache, problem.v_cache, wide[part], problem.lengths[part])
        assert torch.equal(decode_attention(*tensors, split_tokens=32, **problem.options), together[part])


def test_strided_queries_and_lengths_and_an_out_of_their_own():
    problem = random_problem(5, 40, dtype=torch.float32, queries=4, layout="NHD", indexed=False, started=False)
    expected = problem.call()
    heads = problem.q.shape[1]
    qkv = torch.cat([problem.q, torch.zeros_like(problem.q)], 1)
    out = torch.empty(problem.q.shape[1], 4, problem.q.shape[2]).transpose(0, 1)
    both = torch.stack([problem.lengths, problem.lengths], 1)
    tensors = (qkv[:, :heads], problem.k_cache, problem.v_cache, problem.tables, both[:, 0])
    assert torch.equal(decode_attention(*tensors, out=out, **problem.options), expected)


def test_torch_compile_takes_it_whole():
    problem = random_problem(7, 40, dtype=torch.float32, queries=4, fp8=True)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def doubled(q):
        tensors = (q, problem.k_cache, problem.v_cache, problem.tables, problem.lengths)
        return decode_attention(*tensors, **problem.options) * 2

    assert torch.equal(doubled(problem.q), problem.call() * 2)


def wrong(**changed):
    """Return a call whose named arguments are replaced."""
    given = {
        "q": torch.zeros(2, 4, 8),
        "k_cache": torch.zeros(6, 4, 2, 8),
        "v_cache": torch.zeros(6, 4, 2, 8),
        "tables": torch.zeros(2, 3, dtype=torch.int32),
        "lengths": torch.zeros(2, dtype=torch.int32),
    }
    return {**given, **changed}


REFUSED = [
    ({"q": torch.zeros(2, 8)}, "q has 2 dimensions, but must have 3"),
    ({"q": torch.zeros(2, 4, 8, dtype=torch.float64)}, "q is float64, but must be bfloat16"),
    ({"q": torch.zeros(2, 4, 16)[..., ::2]}, "the last dimension of q is not contiguous"),
    ({"q": torch.zeros(2, 4, 0), "scale": 1.0}, "head_dim is 0, but must be from 1"),
    ({"q": torch.zeros(2, 4, 257)}, "head_dim is 257, but must be from 1 to 256"),
    ({"out": torch.zeros(2, 4, 16)[..., ::2]}, "the last dimension of out is not contiguous"),
    ({"out": torch.zeros(2, 4, 8).half()}, "out is float16 .*; they must be equal"),
    ({"v_cache": torch.zeros(6, 4, 2, 16)[..., ::2]}, "the last dimension of v_cache is not contiguous"),
    ({"k_cache": torch.zeros(6, 4, 0, 8), "v_cache": torch.zeros(6, 4, 0, 8)}, "q has 4 heads and the caches 0"),
    ({"q": torch.zeros(2, 3, 8)}, "q has 3 heads and the caches 2"),
    ({"k_cache": torch.zeros(6, 4, 2, 16)}, r"k_cache has shape \[6, 4, 2, 16\].*q has head_dim 8"),
    ({"k_cache": torch.zeros(6, 4, 2, 8, dtype=torch.float16)}, "k_cache is float16, but must be of q's type"),
    ({"v_cache": torch.zeros(7, 4, 2, 8)}, r"k_cache is float32 \[6, .*, but v_cache float32 \[7"),
    ({"tables": torch.zeros(6, dtype=torch.int32)}, "tables has 1 dimension, but must have 2"),
    ({"tables": torch.zeros(1, 3, dtype=torch.int32)}, "tables has 1 row, but q has 2 queries; pass request_index="),
    ({"tables": torch.zeros(2, 3)}, "tables is neither int32 nor int64"),
    ({"starts": torch.zeros(2, dtype=torch.int32)}, "tables has 2 dimensions, but must have 1"),
    ({"starts": torch.zeros(2, 1).int(), "tables": torch.zeros(6).int()}, "starts has 2 dimensions, but must have 1"),
    ({"starts": torch.zeros(4).int()[::2], "tables": torch.zeros(6).int()}, "starts is not contiguous"),
    ({"starts": torch.zeros(1).int(), "tables": torch.zeros(6).int()}, "tables has 1 row, but q has 2 queries"),
    ({"tables": torch.zeros(2, 6).int()[:, ::2]}, "tables is not contiguous"),
    ({"tables": torch.zeros(2, 1).int().expand(2, 2**29)}, "tables has room for 2147483648 tokens of a request"),
    ({"tables": torch.zeros(2, 1).int().expand(2, (2**31 - 2**16) // 4)}, "tables is not contiguous"),  # just fits
    ({"request_index": torch.zeros(4).int()[::2]}, "request_index is not contiguous"),
    ({"request_index": torch.zeros(2)}, "request_index is neither int32 nor int64"),
    ({"lengths": torch.zeros(3, dtype=torch.int32)}, r"lengths has shape \[3\], but q has 2 queries"),
    ({"request_index": torch.zeros(3, dtype=torch.int32)}, r"request_index has shape \[3\]"),
    ({"out": torch.zeros(2, 4, 9)}, "out is .*; they must be equal"),
    ({"k_scale": torch.ones(3)}, "k_scale is .* with 1 element or 2"),
    ({"k_scale": torch.ones(4)[::2]}, "k_scale is .*, contiguous"),
    ({"v_scale": torch.ones(2, dtype=torch.float64)}, "v_scale is .*, but must be a number, or float32"),
    ({"q": torch.zeros(2, 0, 8)}, "q has 0 heads and the caches 2: of q, 1 to 64 heads must read each"),
    ({"k_cache": torch.zeros(6, 0, 2, 8), "v_cache": torch.zeros(6, 0, 2, 8)}, "the caches have pages of 0 slots"),
    ({"layout": "NDH"}, "layout is 'NDH', but must be one of NHD, HND"),
    ({"split_tokens": 0}, "split_tokens is 0, but must be above 0"),
    ({"split_tokens": 40}, "split_tokens is 40, but must be a multiple of 16"),
    ({"q": torch.zeros(2, 4, 8, requires_grad=True)}, "q or a cache requires a gradient"),
]


def test_what_does_not_fit_is_refused():
    for changed, said in REFUSED:
        with pytest.raises(ValueError, match=said):
            decode_attention(**wrong(**changed))


def test_each_tensor_lies_where_q_does():
    others = {name: torch.zeros(2).int() for name in ("starts", "request_index")}
    others |= {"out": torch.zeros(2, 4, 8), "k_scale": torch.ones(2), "v_scale": torch.ones(2)}
    for name, x in {**wrong(), **others}.items():
        with pytest.raises(ValueError, match=r"different devices \(.*meta"):
            decode_attention(**wrong(**{name: x.to("meta")}))


def test_64_heads_of_q_may_read_one_and_no_more():
    assert decode_attention(**wrong(q=torch.zeros(2, 128, 8))).shape == (2, 128, 8)
    with pytest.raises(ValueError, match="q has 130 heads and the caches 2"):
        decode_attention(**wrong(q=torch.zeros(2, 130, 8)))


def test_what_is_no_tensor_is_refused():
    with pytest.raises(TypeError, match="lengths of decode_attention is a list"):
        decode_attention(**wrong(lengths=[1, 2]))
    with pytest.raises(TypeError, match="k_scale is of type str, but must be a number"):
        decode_attention(**wrong(k_scale="half"))


def test_few_queries_are_divided_until_the_gpu_is_busy_and_many_are_not():
    assert spans_for(8, 100, 264) == 1
    assert spans_for(8, 8192, 264) >= 16
    assert spans_for(1024, 4096, 264) <= 4
    assert [spans_for(programs, 4096, 264) for programs in (1, 100_000)] == [20, 1]
