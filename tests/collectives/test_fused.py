"""all_reduce_rms_norm on live ranks: every backend, type, form of the norm and quantisation against float64."""

import itertools
import re
from typing import Any

import pytest
import torch

from commlib.collectives import COLLECTIVES
from commlib.collectives.reference import ordered
from commlib.communicator import Communicator
from commlib.errors import CommError
from commlib.plan import Plan
from commlib.tools.testing import Ranks
from commlib.tools.timing import differing
from tests.fused import drawn
from tests.on_ranks import on_ranks
from tests.pairs import pairwise

TYPES = (torch.float32, torch.float16, torch.bfloat16)
ROWS = (0, 1, 5, 64)
WIDTHS = (8, 136, 2880, 4096)
FORMS: tuple[dict[str, Any], ...] = ({}, {"weight_bias": 1.0}, {"bias": True, "center": True}, {"eps": 0.1})
QUANTS = ("fp8", "fp8_token", "fp8_group")


def of_ranks(comm: Communicator, rows: int, width: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [drawn(rank, rows, width, dtype=dtype) for rank in range(comm.size)]


def expected(h: torch.Tensor, weight: torch.Tensor, form: dict[str, Any], bias: torch.Tensor | None) -> torch.Tensor:
    """Return the norm of h in float64."""
    rows = h.double()
    if form.get("center"):
        rows = rows - rows.mean(-1, keepdim=True)
    scale = (rows.square().mean(-1, keepdim=True) + form.get("eps", 1e-6)).rsqrt()
    y = rows * scale * (weight.double() + form.get("weight_bias", 0.0))
    return y if bias is None else y + bias.double()


def fault(name: str, found: torch.Tensor, wanted: torch.Tensor, slack: float) -> str:
    """Say where found is farther from wanted than one rounding and `slack` of float32's own."""
    found, error = found.double().cpu(), torch.finfo(found.dtype).eps / 2
    off = (found - wanted).abs() - (error * wanted.abs() + slack + torch.finfo(torch.float16).tiny / 1024)
    return f"{name}: {int((off > 0).sum())} of {off.numel()}, by {off.max():g}" if (off > 0).any() else ""


def one(comm: Communicator, rows: int, width: int, dtype: torch.dtype, form: dict[str, Any], in_place: bool) -> str:
    """Make one call; say what is wrong with it."""
    inputs, device = of_ranks(comm, rows, width, dtype), comm.device
    residual, weight = drawn(100, rows, width, dtype=dtype), drawn(101, width, dtype=dtype)
    bias = drawn(102, width, dtype=dtype) if form.get("bias") else None
    given = {**form, "bias": None if bias is None else bias.to(device)}
    x, kept = inputs[comm.rank].clone().to(device), residual.clone().to(device)
    outs = {} if in_place else {"out": torch.empty_like(x), "residual_out": torch.empty_like(x)}
    y, h = comm.all_reduce_rms_norm(x, kept, weight.to(device), **given, **outs)
    if y is not outs.get("out", x) or h is not outs.get("residual_out", kept):
        return "the results are not where they were asked for"
    if not in_place and not (torch.equal(x.cpu(), inputs[comm.rank]) and torch.equal(kept.cpu(), residual)):
        return "an input has changed"
    total = ordered(inputs, "sum") + residual
    if comm.backend != "torch" and not torch.equal(h.cpu(), total):
        return "the residual differs"
    return fault("the norm", y, expected(h.cpu(), weight, form, bias), 2e-5)


@pytest.mark.parametrize("world", [2, *(pytest.param(world, marks=pytest.mark.slow) for world in (1, 3, 4))])
@on_ranks(fixture="each_ranks")
def test_every_form_of_the_norm_is_within_one_rounding(comm: Communicator, world: int) -> None:
    cases = pairwise if comm.size == 2 else itertools.product
    found = ((case, one(comm, *case)) for case in cases(ROWS, WIDTHS, TYPES, FORMS, (False, True)))
    return [f"{case}: {said}" for case, said in found if said]


@on_ranks(2, "each_ranks")
def test_quantised_rows_times_their_scales_are_the_norm(comm: Communicator) -> None:
    """Scales times 8-bit floats must be what the norm is without them, within an 8-bit rounding."""
    wrong = []
    for rows, dtype, quant in itertools.product((1, 7), TYPES, QUANTS):
        width = 1024
        weight, residual = drawn(101, width, dtype=dtype), drawn(100, rows, width, dtype=dtype)
        x = of_ranks(comm, rows, width, dtype)[comm.rank]
        given = {"scale": torch.tensor(0.02)} if quant == "fp8" else {}
        q, h, scale = comm.all_reduce_rms_norm(x, residual, weight, quant=quant, **given)
        shape = {"fp8": (), "fp8_token": (rows, 1), "fp8_group": (rows, width // 128)}[quant]
        if q.dtype != torch.float8_e4m3fn or scale.dtype != torch.float32 or tuple(scale.shape) != shape:
            wrong.append(f"{quant}: {q.dtype}, {scale.dtype} of {tuple(scale.shape)}")
        spread = scale.double().repeat_interleave(128, -1) if quant == "fp8_group" else scale.double()
        y = expected(h, weight, {}, None)
        if quant != "fp8" and not torch.equal(q.float().abs().amax(-1), torch.full((rows,), 448.0)):
            wrong.append(f"{quant}: a row does not use the whole range")
        off = ((q.double() * spread - y).abs() > y.abs() / 16 * 1.001 + spread * 2**-10) & (y.abs() < 448 * spread)
        if off.any():
            wrong.append(f"{quant} of {rows} rows of {dtype}: {int(off.sum())} wrong")
    return wrong


def disagree(comm: Communicator, algorithm: str, rows: int, width: int, form: dict[str, Any]) -> str:
    """Rank 1 has other rows, or another form."""
    comm.use(Plan.only({"all_reduce_rms_norm": algorithm}, base=comm.plan))
    rows, width, form = (rows, width, form) if comm.rank == 1 else (4, 64, {})
    with pytest.raises(CommError) as raised:
        comm.all_reduce_rms_norm(torch.ones(rows, width), None, torch.ones(width), **form)
    return str(raised.value)


@pytest.mark.parametrize("algorithm", ["shm_composed", "shm_oneshot", "shm_twoshot"])
def test_ranks_that_disagree_on_rows_or_form_are_told_both(algorithm: str) -> None:
    with Ranks(2, backend="shm", timeout_s=30.0) as ranks:
        for said in ranks.run(disagree, algorithm, 8, 32, {}):
            assert "4 rows of 64 elements" in said
            assert "8 rows of 32 elements" in said
    with Ranks(2, backend="shm", timeout_s=30.0) as ranks:
        for said in ranks.run(disagree, algorithm, 4, 64, {"quant": "fp8_token", "center": True}):
            assert "quant none, weight float32" in said
            assert "quant fp8_token, center=True, weight float32" in said


REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("x has rows of 63, but must have a multiple of 8 up to 16384", {"x": torch.ones(2, 63)}),
    ("x is float64, but must be float32, float16 or bfloat16", {"x": torch.ones(2, 64, dtype=torch.float64)}),
    ("x has rows of 16392, but must", {"x": torch.ones(1, 16392), "weight": torch.ones(16392)}),
    ("x has no dimension, but must have rows", {"x": torch.tensor(1.0)}),
    ("residual has shape (2, 1, 64), but x has (2, 64)", {"residual": torch.ones(2, 1, 64)}),
    ("x has rows that are not contiguous, or not the same distance", {"x": torch.ones(2, 128)[:, ::2]}),
    ("or not the same distance apart; first x = x.contiguous()", {"x": torch.ones(2, 3, 64)[:, :2]}),
    ("weight has shape (1, 64), but x has rows of 64", {"weight": torch.ones(1, 64)}),
    ("bias is bfloat16, but weight is float32", {"x": torch.ones(2, 64).bfloat16(), "bias": torch.ones(64).bfloat16()}),
    ("scale is float16, but must be float32", {"quant": "fp8", "scale": torch.ones(1).half()}),
    ("scale has 2 elements, but needs 1", {"quant": "fp8", "scale": torch.ones(2)}),
    ("bias is float16, but must be float32", {"bias": torch.ones(64, dtype=torch.float16)}),
    ("out is float64, but must be float32", {"out": torch.ones(2, 64, dtype=torch.float64)}),
    ("out has rows that are not contiguous, or not the same", {"out": torch.ones(64).expand(2, 64)}),
    ("quant is 'int8', but must be None, 'fp8', 'fp8_token' or 'fp8_group'", {"quant": "int8"}),
    ("needs a multiple of 128", {"quant": "fp8_group"}),
    ("scale is not given, but quant='fp8' needs one", {"quant": "fp8"}),
    ("scale is given, but only quant='fp8' takes one", {"scale": torch.ones(1)}),
)


@pytest.mark.parametrize(("told", "given"), REFUSED, ids=[told[:30] for told, _ in REFUSED])
def test_a_wrong_argument_is_told_with_both_sides(comm: Communicator, told: str, given: dict[str, Any]) -> None:
    arguments = {"x": torch.ones(2, 64), "residual": None, "weight": torch.ones(64), **given}
    with pytest.raises(ValueError, match=re.escape(told)):
        comm.all_reduce_rms_norm(**arguments)


def test_tensors_that_share_memory_are_refused_unless_one_takes_the_others_place(comm: Communicator) -> None:
    both, weight = torch.ones(2, 128), torch.ones(64)
    comm.all_reduce_rms_norm(both[:, :64], both[:, 64:], weight)  # columns beside each other
    with pytest.raises(ValueError, match="out and residual share memory; pass separate tensors"):
        comm.all_reduce_rms_norm(torch.ones(2, 64), both[:, 64:], weight, out=both[:, 64:])
    with pytest.raises(ValueError, match="out and x share memory; pass the same tensor or separate tensors"):
        comm.all_reduce_rms_norm(both[:, :64], None, weight, out=both[:, 8:72])
    for x, out in ((both[:1], both[1:]), (both[1:], both[:1])):  # one behind the other
        comm.all_reduce_rms_norm(x, None, torch.ones(128), out=out)
    other_distance = both.view(-1).as_strided((2, 64), (64, 1), 64)
    dense = torch.ones(2, 64)
    in_8_bits = {"out": dense.view(torch.float8_e4m3fn)[:, :64], "quant": "fp8_token"}
    for x, more in ((other_distance, {"out": both[:, :64]}), (dense, in_8_bits)):
        with pytest.raises(ValueError, match="out and x share memory"):
            comm.all_reduce_rms_norm(x, None, weight, **more)


def test_rows_may_lie_in_three_dimensions(comm: Communicator) -> None:
    x, weight = drawn(0, 6, 64), torch.ones(64)
    results = (comm.all_reduce_rms_norm(x.view(*shape), None, weight)[0] for shape in ((6, 64), (2, 3, 64)))
    assert torch.equal(*(result.view(6, 64) for result in results))


@on_ranks(3)
def test_rows_may_be_apart(comm: Communicator) -> None:
    """Return the algorithms by which rows of x or of the result that are apart make a difference."""
    base, wrong = comm.plan, []
    x, residual, weight = drawn(comm.rank, 6, 64, dtype=TYPES[0]), drawn(9, 6, 64, dtype=TYPES[0]), torch.ones(64)
    for algorithm in COLLECTIVES["all_reduce_rms_norm"].algorithms:
        if algorithm.backend == "shm":
            comm.use(Plan.only({"all_reduce_rms_norm": algorithm.name}, base=base))
            wide, apart = torch.zeros(6, 128), torch.cat([x, x + 1], 1)[:, :64]
            comm.all_reduce_rms_norm(apart, residual.clone(), weight, out=wide[:, :64])
            dense, _ = comm.all_reduce_rms_norm(x, residual.clone(), weight, out=torch.empty(6, 64))
            if not torch.equal(wide, torch.cat([dense, torch.zeros(6, 64)], 1)):
                wrong.append(algorithm.name)
    comm.use(base)
    return wrong


@pytest.mark.parametrize("quant", ["fp8_token", "fp8_group"])
def test_a_row_of_zeros_is_quantised_to_zeros(comm: Communicator, quant: str) -> None:
    x = torch.stack([torch.zeros(256), torch.ones(256)])
    q, _, scale = comm.all_reduce_rms_norm(x, None, torch.ones(256), quant=quant)
    assert q.view(torch.uint8)[0].any() == scale[0].any() == False  # noqa: E712 - tensors
    assert (q[1].float() == 448).all()


def called(comm: Communicator, rows: int, dtype: torch.dtype, width: int, form: dict[str, Any]) -> list[torch.Tensor]:
    """Return the first rows of 40 by the plan in force."""
    x, residual = (drawn(seed, 40, width, dtype=dtype)[:rows] for seed in (comm.rank, 100))
    weight = drawn(101, width, dtype=torch.float32 if form.get("quant") else dtype)
    return list(comm.all_reduce_rms_norm(x, residual, weight, **form))


@pytest.mark.parametrize("world", [3, *(pytest.param(world, marks=pytest.mark.slow) for world in (2, 4))])
@on_ranks()
def test_a_rows_bits_depend_on_that_row_alone_by_every_algorithm(comm: Communicator, world: int) -> None:
    base, wrong = comm.plan, []
    names = ("shm_composed", "shm_oneshot", "shm_twoshot")
    plans = {name: Plan.only({"all_reduce_rms_norm": name}, base=base) for name in names}
    chunks = Plan.only({"all_reduce_rms_norm": "shm_twoshot"}, base=base, params={"chunk_bytes": 4096})
    forms: tuple[dict[str, Any], ...] = ({}, {"center": True}, {"quant": "fp8_token"}, {"quant": "fp8_group"})
    for dtype, width, form in itertools.product(TYPES, (128, 2944), forms):
        comm.use(plans["shm_composed"])
        whole = called(comm, 40, dtype, width, form)
        for (name, plan), rows in itertools.product([*plans.items(), ("chunks", chunks)], (1, 3, 7, 40)):
            comm.use(plan)
            found = called(comm, rows, dtype, width, form)
            if any(differing(a, b[:rows]) for a, b in zip(found, whole, strict=True)):
                wrong.append(f"{name} {rows} x {width} {dtype} {form}")
    comm.use(base)
    return wrong


def test_a_call_is_not_fused_over_another_collective() -> None:
    from commlib.compile.fuse import _place  # here, as it loads torch's compiler, which takes a second in each rank

    for op, fits in ((torch.ops.aten.neg.default, True), (torch.ops._c10d_functional.all_reduce.default, False)):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        call, _, residual = (graph.call_function(each, (x,)) for each in (op, op, torch.ops.aten.neg.default))
        assert _place(list(graph.nodes), call, [x, residual], x) is (residual if fits else None)
