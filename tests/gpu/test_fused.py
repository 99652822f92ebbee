"""all_reduce_rms_norm on GPUs, to the bit: every algorithm, form, batch and place; under graphs and early launches."""

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from commlib.communicator import Communicator
from tests.fused import drawn
from tests.gpu.on_ranks import on_every_rank
from tests.gpu.rows import differ, expected, of_ranks
from tests.gpu.steady import pinned
from tests.pairs import pairwise

OP = "all_reduce_rms_norm"
# Those of tiles take rows of at most 16 KiB; for longer ones the plan's fallback runs.
PACKETS = ("lsa_lamport_oneshot", "lsa_lamport_cluster", "lsa_lamport_twoshot")
ALGORITHMS = (*PACKETS, "lsa_oneshot", "lsa_twoshot", "nccl_composed")
TYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDTHS = (8, 24, 64, 120, 128, 256, 520, 896, 1024, 1536, 2048, 2880, 3584, 4096, 5120, 6144, 7168, 8192, 12288, 16384)
BIAS = drawn(102, 2880, dtype=torch.bfloat16)
FORMS: tuple[dict[str, Any], ...] = ({}, {"weight_bias": 1.0, "eps": 1e-5}, {"center": True, "bias": BIAS})
QUANTS: tuple[dict[str, Any], ...] = (
    {"quant": "fp8", "scale": torch.tensor(0.02)},
    {"quant": "fp8_token"},
    {"quant": "fp8_group"},
    {"quant": "fp8_group", "center": True, "weight_bias": 1.0},
)
MOST_ROWS = 300
SOAK_STEPS, SOAK_REPLAYS = 16, 2000


class Case:
    """A call and what it must return."""

    def __init__(self, comm: Communicator, rows: int, width: int, dtype: torch.dtype, *, seed: int = 0, **form: Any):
        self.comm, self.form = comm, form
        inputs = of_ranks(comm.size, rows, width, dtype, seed)
        residual = None if form.pop("alone", False) else drawn(1000 * seed + 100, rows, width, dtype=dtype)
        weight = drawn(101, width, dtype=form.pop("weight_dtype", dtype))
        self.wanted = expected(inputs, residual, weight, **form)
        self.x, self.weight = inputs[comm.rank].to(comm.device), weight.to(comm.device)
        self.residual = None if residual is None else residual.to(comm.device)
        self.given = {key: v.to(comm.device) if isinstance(v, Tensor) else v for key, v in form.items()}

    def call(self, x: Tensor, residual: Tensor | None, **outs: Tensor) -> tuple[Tensor, ...]:
        return self.comm.all_reduce_rms_norm(x, residual, self.weight, **self.given, **outs)

    def made(self) -> tuple[Tensor, ...]:
        """Out of place."""
        outs = {} if self.form.get("quant") else {"out": torch.full_like(self.x, 7.0)}
        return self.call(self.x, self.residual, residual_out=torch.full_like(self.x, 7.0), **outs)

    def wrong(self) -> str:
        return differ(self.made(), self.wanted)


case_of = functools.lru_cache(maxsize=256)(Case)  # its reference, computed on the CPU, serves all algorithms


def said(cases: Iterator[tuple[Any, str]]) -> list[str]:
    return [f"{case}: {words}" for case, words in cases if words]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@on_every_rank
def test_rows_of_every_width_and_type_have_the_bits_of_the_reference(comm: Communicator, algorithm: str) -> list[str]:
    with pinned(comm, OP, algorithm):
        cases = itertools.product((1, 3, 40), WIDTHS, TYPES)
        return said((case[:3], case_of(comm, *case).wrong()) for case in cases)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@on_every_rank
def test_every_form_and_quantisation_has_the_bits_of_the_reference(comm: Communicator, algorithm: str) -> list[str]:
    found = []
    with pinned(comm, OP, algorithm):
        for dtype, form, more in pairwise(TYPES, FORMS, ({}, {"alone": True}, {"weight_dtype": torch.float32})):
            bias = {} if "bias" not in form else {"bias": BIAS.to(more.get("weight_dtype", dtype))}
            found.append(((dtype, form, more), Case(comm, 5, 2880, dtype, **{**form, **bias, **more}).wrong()))
        for dtype, form, width in pairwise(TYPES, QUANTS, (128, 896, 4096, 8192)):
            found.append(((dtype, form, width), Case(comm, 5, width, dtype, **form).wrong()))
    return said(iter(found))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@on_every_rank
def test_a_rows_bits_depend_on_that_row_alone(comm: Communicator, algorithm: str) -> list[str]:
    found = []
    with pinned(comm, OP, algorithm):
        for width in WIDTHS:
            case = case_of(comm, MOST_ROWS, width, torch.bfloat16)
            whole = case.made()
            found.append(((width, "all"), differ(whole, case.wanted)))
            good = torch.ones((), dtype=torch.bool, device=comm.device)
            assert case.residual is not None
            for rows in range(1, MOST_ROWS):
                outs = {"out": torch.empty_like(case.x[:rows]), "residual_out": torch.empty_like(case.x[:rows])}
                y, h = case.call(case.x[:rows], case.residual[:rows], **outs)
                good &= (y == whole[0][:rows]).all() & (h == whole[1][:rows]).all()
            found.append(((width, "parts"), "" if bool(good) else "a smaller batch has other bits"))
    return said(iter(found))


def placed(like: Tensor, shift: int, gap: int) -> Tensor:
    """The same values elsewhere: `shift` elements behind an aligned address, `gap` between rows."""
    rows, width = like.shape
    room = torch.full((rows * (width + gap) + shift,), 7.0, dtype=like.dtype, device=like.device)
    return room[shift:].view(rows, width + gap)[:, :width].copy_(like)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@on_every_rank
def test_tensors_may_lie_anywhere_and_differently_on_each_rank(comm: Communicator, algorithm: str) -> list[str]:
    """In place or not, strided or not, aligned or not, and each rank otherwise than the one before."""
    found = []
    shifts = ((0, 0), (0, 8), (8, 16), (1, 0), (3, 8), (0, 5))
    with pinned(comm, OP, algorithm):
        for number, (dtype, width, rows) in enumerate(itertools.product(TYPES, (2880, 4096), (1, 19, 300))):
            for turn, in_place in itertools.product(range(len(shifts)), (0, 1, 2, 3)):
                case = Case(comm, rows, width, dtype, seed=number)
                assert case.residual is not None
                shift, gap = shifts[(turn + comm.rank) % len(shifts)]
                kind = (in_place + comm.rank) % 4
                x, residual = placed(case.x, shift, gap), placed(case.residual, gap, shift)
                outs = {}
                if kind & 1:
                    outs["out"] = torch.full_like(case.x, 7.0)
                if kind & 2:
                    outs["residual_out"] = torch.full_like(case.x, 7.0)
                y, h = case.call(x, residual, **outs)
                words = differ((y.contiguous(), h.contiguous()), case.wanted)
                found.append(((dtype, width, rows, shift, gap, kind), words))
    return said(iter(found))


@pytest.mark.parametrize(("rows", "width"), [(1, 8192), (4, 4096), (64, 8192), (257, 2880)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@on_every_rank
def test_a_call_between_a_producer_and_a_consumer_is_right_every_time(
    comm: Communicator, algorithm: str, rows: int, width: int
) -> str:
    """A producer right before and a consumer right behind each call, as graphs launch them: early."""
    cases = [Case(comm, rows, width, torch.bfloat16, seed=seed) for seed in range(SOAK_STEPS)]
    x, residual = torch.empty_like(cases[0].x), torch.empty_like(cases[0].x)
    wanted = [tuple(tensor.to(comm.device) for tensor in case.wanted) for case in cases]
    bad = torch.zeros((), dtype=torch.int64, device=comm.device)
    with pinned(comm, OP, algorithm):
        cases[0].made()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for case, (want_y, want_h) in zip(cases, wanted, strict=True):
                assert case.residual is not None
                x.copy_(case.x)
                residual.copy_(case.residual)
                y, h = case.call(x, residual)
                bad.add_((y != want_y).sum() + (h != want_h).sum())
        for _ in range(SOAK_REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
    return f"{int(bad)} values are wrong" if int(bad) else ""


@pytest.mark.parametrize(("rows", "width"), [(1, 8192), (16, 5120), (200, 7168)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@on_every_rank
def test_calls_right_behind_each_other_are_right_eager_and_in_a_graph(
    comm: Communicator, algorithm: str, rows: int, width: int
) -> str:
    """Calls with nothing between them: each may start while the one before runs, and reads what that one writes."""
    cases = [Case(comm, rows, width, torch.bfloat16, seed=seed) for seed in range(SOAK_STEPS)]
    with pinned(comm, OP, algorithm):
        results = [case.made() for case in cases]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = [case.made() for case in cases]
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
    words = (differ(found, case.wanted) for found, case in zip(results + captured, cases * 2, strict=True))
    return next((word for word in words if word), "")
