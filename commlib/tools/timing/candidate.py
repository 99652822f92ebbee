"""Candidate: one way to make a call, as the protocol wants it; Truth: the inputs, and what it must make of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from inspect import signature
from typing import Any

import torch

from commlib.collectives.spec import Algorithm, Call, Collective, Fold
from commlib.communicator import Communicator
from commlib.errors import Unsupported
from commlib.plan import Plan

PERIOD = 4093  # elements after which inputs repeat; a prime, so that a misplaced block never looks right
POISON = -0x5B
Run = Callable[[], object]
Prepare = Callable[[torch.Tensor, torch.Tensor, Call], Run]
Empty = Callable[[int, torch.dtype], torch.Tensor]


def plain(elements: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(elements, dtype=dtype)


@cache
def plain_on(device: torch.device) -> Empty:
    """Return what allocates plain tensors on a device; one function for each, so that candidates share them."""
    return plain if device.type == "cpu" else lambda elements, dtype: torch.empty(elements, dtype=dtype, device=device)


def twin_of(comm: Communicator) -> Communicator:
    """Make a communicator of the same ranks, to be measured while that one makes no large calls."""
    with comm.resources.as_first():
        twin = comm.split(0, comm.rank)
    assert twin is not None
    return twin


@dataclass(frozen=True)
class Candidate:
    """One way to make a call: `prepare(x, out, call)` returns what is timed or raises Unsupported.

    `enter` runs before each block, outside the clock: it switches plans. `empty` allocates the tensors. What is not
    `checked` is a probe: it gives no values to compare.
    """

    label: str
    prepare: Prepare
    in_place: bool = False
    empty: Empty = plain
    enter: Callable[[], object] = lambda: None
    checked: bool = True


def public_call(comm: Communicator, collective: Collective) -> Prepare:
    """Return a `prepare` that makes the collective's public call, with nothing between the clock and it."""

    def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
        recorder = _Recorder(comm)
        collective.invoke(recorder, x, out, call)
        calls = recorder.calls
        return calls[0] if len(calls) == 1 else lambda: [made() for made in calls]

    return prepare


def pinned(
    twin: Communicator, collective: Collective, algorithm: Algorithm, plan: Plan, in_place: bool = False
) -> Candidate:
    """Return the public call on a communicator that is given a plan which leaves no choice but this algorithm."""
    make = public_call(twin, collective)

    def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
        if in_place and not algorithm.in_place:
            raise Unsupported("it cannot work in place")
        if reason := algorithm.refuses(call.dtype, call.redop, call.size):
            raise Unsupported(reason)
        return make(x, out, call)

    def enter() -> None:
        if twin.plan is not plan:
            twin.use(plan)

    empty = twin.empty if algorithm.placement == "symmetric" else plain_on(twin.device)
    return Candidate(algorithm.name, prepare, in_place, empty, enter)


class _Recorder:
    """Stands in for a communicator: keeps the calls made on it instead of making them."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.calls: list[Run] = []

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._comm, name)
        if not callable(member):
            return member

        def record(*args: Any, **options: Any) -> None:
            # By position where it can be: what a call by keyword costs is the caller's, and others have no keywords.
            bound = signature(member).bind(*args, **options)
            self.calls.append(partial(member, *bound.args, **bound.kwargs))

        return record


class Truth:
    """Every rank's input and this rank's expected output: small whole numbers, exact in every type."""

    def __init__(self, collective: Collective, call: Call, fold: Fold) -> None:
        inputs = [
            _values(collective.shapes(of_rank)[0], of_rank)
            for of_rank in (replace(call, rank=rank) for rank in range(call.size))
        ]
        self.input = inputs[call.rank]
        self.expected = collective.reference(call, inputs, fold)
        self.share = collective.close(call.dtype) if collective.close else 0.0

    def wrong(self, x: torch.Tensor, out: torch.Tensor, run: Run) -> int:
        """Make the call once on fresh inputs and poisoned outputs, and count the wrong elements."""
        poison(out)
        x.copy_(self.input)
        run()
        if self.expected is None:
            return 0
        expected = self.expected.view(-1).to(out.device)
        return far(out, expected, self.share) if self.share else differing(out, expected)


def _values(elements: int, call: Call) -> torch.Tensor:
    generator = torch.Generator().manual_seed(call.rank)
    low, high = (0, 2) if call.dtype == torch.bool else (1, 5)
    tile = torch.randint(low, high, (PERIOD,), generator=generator).to(call.dtype)
    return tile.repeat(-(-elements // PERIOD))[:elements]


def bits(x: torch.Tensor) -> torch.Tensor:
    """View elements as whole numbers: every type can be poisoned and compared, and bits are what counts."""
    return x.view({1: torch.int8, 2: torch.int16, 4: torch.int32}.get(x.element_size(), torch.int64))


def poison(out: torch.Tensor) -> torch.Tensor:
    bits(out).fill_(POISON)
    return out


def far(actual: torch.Tensor, expected: torch.Tensor, share: float) -> int:
    """Count the elements that are farther from what is expected than a share of it."""
    return int(((actual.double() - expected.double()).abs() > share * expected.double().abs()).count_nonzero())


def differing(actual: torch.Tensor, expected: torch.Tensor) -> int:
    """Count the elements whose bits differ; another shape or type is wrong in every element."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return expected.numel()
    return int((bits(actual) != bits(expected)).count_nonzero())
