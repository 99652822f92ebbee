"""What `commlib test` runs on each rank: one algorithm over types, reductions and ragged sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from commlib.collectives import COLLECTIVES
from commlib.collectives.spec import Algorithm, Call, Collective
from commlib.plan import Plan

if TYPE_CHECKING:
    from commlib.communicator import Communicator

# Empty, one, no multiple of any vector, one past a page, one past a chunk of a pipelined algorithm.
_COUNTS = (0, 1, 17, 4099, 300_007)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64, torch.uint8)
_REDOPS = ("sum", "prod", "min", "max", "avg")


def check_algorithm(comm: Communicator, name: str, algorithm: str, quick: bool) -> str:
    """Run every case of one algorithm on this rank; return the first wrong one, or ''."""
    collective = COLLECTIVES[name]
    chosen = next(a for a in collective.algorithms if a.name == algorithm)
    comm.use(Plan.only({name: algorithm}))
    # Every rank runs every case, right or wrong: a rank that stopped early would leave the others waiting.
    wrong = [
        text
        for call in _calls(comm, collective, chosen, quick)
        if (text := _run(comm, collective, chosen, call))
    ]
    return wrong[0] if wrong else ""


def _calls(comm: Communicator, collective: Collective, algorithm: Algorithm, quick: bool) -> Iterator[Call]:
    counts = _COUNTS[1:4] if quick else _COUNTS
    dtypes = _DTYPES[:2] if quick else _DTYPES
    redops = (_REDOPS[:1] if quick else _REDOPS) if collective.reduces else ("sum",)
    for count, dtype, redop in itertools.product(counts, dtypes, redops):
        if redop == "avg" and not dtype.is_floating_point:
            continue
        if algorithm.refuses(dtype, redop) is None:
            root = comm.size - 1 if collective.rooted else 0
            yield Call(comm.rank, comm.size, count, dtype, redop, root)


def _run(comm: Communicator, collective: Collective, algorithm: Algorithm, call: Call) -> str:
    inputs = [_input(collective, call, rank) for rank in range(call.size)]
    expected = collective.reference(call, inputs)
    x, out = (_tensor(comm, algorithm, elements, call.dtype) for elements in collective.shapes(call))
    x.copy_(inputs[call.rank])
    out.fill_(99)  # an output that nobody writes must not look right
    collective.invoke(comm, x, out, call)
    if expected is None or torch.equal(out, expected):
        return ""
    at = int((out != expected).nonzero()[0])
    case = f"{collective.name} {algorithm.name} {call.dtype} {call.redop} count={call.count}"
    return f"{case}: element {at} is {out[at].item()}, expected {expected[at].item()}"


def _tensor(comm: Communicator, algorithm: Algorithm, elements: int, dtype: torch.dtype) -> torch.Tensor:
    if algorithm.placement == "symmetric":
        return comm.empty((elements,), dtype)
    return torch.empty(elements, dtype=dtype)


def _input(collective: Collective, call: Call, rank: int) -> torch.Tensor:
    """Return rank's input: small whole numbers, exact in every type and under every reduction."""
    of_rank = Call(rank, call.size, call.count, call.dtype, call.redop, call.root)
    elements = collective.shapes(of_rank)[0]
    return (torch.arange(elements) % 3 + rank % 2 + 1).to(call.dtype)
