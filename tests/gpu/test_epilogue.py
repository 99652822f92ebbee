"""Epilogues of the user's on GPUs: every algorithm against the references, to the bit; places, graphs, mistakes."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import commlib
from commlib.collectives.reference import ordered
from commlib.communicator import Communicator
from commlib.compile.epilogue import Epilogue
from commlib.errors import BuildFailed
from commlib.plan import Plan
from commlib.tools.testing import Ranks
from tests.epilogues import FP8_GROUPS, INT8, QK_NORM, RMS_NORM, SCALED, has_other_bits
from tests.fused import drawn
from tests.gpu.faults import error_of, finish, together
from tests.gpu.fresh import fresh
from tests.gpu.on_ranks import on_every_rank
from tests.gpu.rows import of_ranks
from tests.gpu.steady import pinned
from tests.gpu.test_fused import ALGORITHMS, OP, TYPES, placed
from tests.pairs import pairwise

EPILOGUES = (SCALED, QK_NORM, INT8, RMS_NORM, FP8_GROUPS)
WIDTHS = (128, 2944, 8192, 16384)
PATIENCE_S = 5.0


class Case:
    """A call, and what it must return."""

    def __init__(self, comm: Communicator, epilogue: Epilogue, rows: int, width: int, dtype: torch.dtype) -> None:
        self.comm, self.epilogue = comm, epilogue
        inputs = of_ranks(comm.size, rows, width, dtype)
        residual, weight = drawn(100, rows, width, dtype=dtype), drawn(101, width, dtype=dtype)
        given: dict[str, Any] = {"residual": residual, "weight": weight, "limit": drawn(102, rows, 1, dtype=dtype)}
        given |= {"eps": 1e-5, "weight_bias": 1.0}
        given = {name: value for name, value in given.items() if f"{name}=" in repr(epilogue)}
        self.wanted = epilogue.reference(ordered(inputs, "sum"), **given)
        self.x = inputs[comm.rank].to(comm.device)
        self.given = {name: v.to(comm.device) if isinstance(v, Tensor) else v for name, v in given.items()}

    def call(self, x: Tensor | None = None, **changed: Any) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = self.epilogue(self.comm, self.x if x is None else x, **{**self.given, **changed})
        return found

    def differs(self, found: tuple[Tensor, ...]) -> list[int]:
        return [at for at, (a, b) in enumerate(zip(found, self.wanted, strict=True)) if has_other_bits(a, b)]


case_of = functools.lru_cache(maxsize=256)(Case)  # its reference, computed on the CPU, serves all algorithms


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@on_every_rank
def test_every_epilogue_has_the_bits_of_its_reference(comm: Communicator, algorithm: str) -> list[Any]:
    found = []
    with pinned(comm, OP, algorithm):
        for epilogue, width, dtype, rows in pairwise(EPILOGUES, WIDTHS, TYPES, (1, 3, 300)):
            case = case_of(comm, epilogue, rows, width, dtype)
            kept = case.x.clone()
            if (said := case.differs(case.call())) or not torch.equal(case.x, kept):
                found.append((epilogue.name, rows, width, said))
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@on_every_rank
def test_tensors_may_lie_anywhere_and_outputs_take_the_place_of_inputs(comm: Communicator, algorithm: str) -> list[Any]:
    """In place of x, of the residual, strided, at odd addresses, and each rank otherwise than the one before."""
    found = []
    shifts = ((0, 0), (0, 8), (1, 0), (3, 8), (0, 5))
    with pinned(comm, OP, algorithm):
        for dtype, rows, turn in itertools.product(TYPES, (1, 19, 300), range(len(shifts))):
            case = Case(comm, QK_NORM, rows, 2944, dtype)
            shift, gap = shifts[(turn + comm.rank) % len(shifts)]
            x, residual = placed(case.x, shift, gap), placed(case.given["residual"], gap, shift)
            weight = placed(case.given["weight"][None], shift, 0)[0]
            outs = [{}, {"out": x}, {"residual_out": residual}, {"out": x, "residual_out": residual}]
            y, h = case.call(x, residual=residual, weight=weight, **outs[(turn + comm.rank) % 4])
            if said := case.differs((y.contiguous(), h.contiguous())):
                found.append((dtype, rows, shift, gap, said))
    return found


@on_every_rank
def test_one_rank_alone_runs_the_epilogue_on_its_own_rows(comm: Communicator) -> list[Any]:
    made = comm.split(comm.rank)
    assert made is not None
    with made:
        cases = [Case(made, epilogue, 5, 896, dtype) for epilogue in EPILOGUES for dtype in TYPES]
        return [(case.epilogue.name, said) for case in cases if (said := case.differs(case.call()))]


# --- mistakes


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@on_every_rank
def test_a_mistake_in_the_source_is_told_by_its_line_and_nothing_has_started(
    comm: Communicator, algorithm: str
) -> list[int]:
    wrong = commlib.epilogue(
        "const Row h = x;\nstore(out, h * wieght);", outputs={"out": ("row", None)}, reference=lambda x: x, name="wrong"
    )
    case = Case(comm, INT8, 3, 128, torch.float32)
    kept = case.x.clone()
    with pinned(comm, OP, algorithm):
        with pytest.raises(BuildFailed, match=r'epilogue wrong\(2\): error: identifier "wieght" is undefined'):
            wrong(comm, case.x, out=case.x)
        assert torch.equal(case.x, kept)
        return case.differs(case.call())


@on_every_rank
def test_a_wrong_argument_is_refused_before_anything_is_launched(comm: Communicator) -> None:
    x, weight = torch.ones(2, 128, device=comm.device), torch.ones(128, device=comm.device)
    usual: dict[str, Any] = {"residual": None, "weight": weight, "eps": 0.0}
    for changed, told in (
        ({"weight": weight.cpu()}, f"weight is on the CPU, but rank {comm.rank}'s communicator is on cuda:"),
        ({"out": x[:, :64]}, r"out has shape \(2, 64\), but x has \(2, 128\)"),
    ):
        with pytest.raises(ValueError, match=told):
            QK_NORM(comm, x, **{**usual, **changed})


def disagree(comm: Communicator, algorithm: str, how: str, at_once: bool) -> str:
    """The last rank makes another call than the others."""
    x, weight = torch.ones(4, 256, device=comm.device), torch.ones(256, device=comm.device)
    calls: dict[str, Callable[[Communicator], object]] = {
        "ours": lambda on: INT8(on, x),
        "epilogue": lambda on: QK_NORM(on, x, residual=None, weight=weight, eps=0.0),
        "width": lambda on: INT8(on, x.view(8, 128)),
        "norm": lambda on: on.all_reduce_rms_norm(x.clone(), None, weight),
    }
    for made in (comm, odd := fresh(comm, patience_s=PATIENCE_S)):
        with pinned(made, OP, algorithm):
            for call in calls.values():  # compiled before
                call(made)
    torch.cuda.synchronize()
    odd.use(Plan.only({OP: algorithm}, base=odd.plan))
    together(comm) if at_once else comm.barrier()
    call = calls[how if odd.rank == odd.size - 1 else "ours"]
    text = error_of(lambda: call(odd)) or finish(odd)
    odd.close()
    return text


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("how", ["epilogue", "width", "norm"])
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name.startswith("lsa_")])
def test_ranks_with_different_epilogues_are_told(nccl_ranks: Ranks, algorithm: str, how: str, at_once: bool) -> None:
    answers = nccl_ranks.run(disagree, algorithm, how, at_once)
    assert all(answer.startswith("CommError: ranks disagree: rank ") for answer in answers), answers
    assert any(f"all_reduce_epilogue float32 sum by {algorithm}" in answer for answer in answers), answers
