"""What `commlib bench` runs on each rank: every algorithm of every call asked for, and torch beside it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from commlib.collectives import COLLECTIVES, Algorithm, Call, Collective
from commlib.collectives.reference import ordered, reducible
from commlib.errors import Unsupported
from commlib.plan import Explanation, Plan
from commlib.timing import Candidate, Measurement, Protocol, Run, measure, plain_on, public_call

if TYPE_CHECKING:
    from commlib.communicator import Communicator

WARMUP_S = 0.3
PROBE_COUNT = 1 << 12  # elements at which a collective's bytes per element are read off its contract


@dataclass(frozen=True)
class Job:
    """What was asked for, the same on every rank."""

    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    redops: tuple[str, ...]
    root: int
    algorithms: tuple[str, ...]  # "all", "auto" (the plan's choice), or names
    peers: tuple[str, ...]
    places: tuple[bool, ...]  # out of place is False
    protocol: Protocol
    seconds: float


@dataclass(frozen=True)
class Line:
    """One way to make a call, out of place (False) and in place (True)."""

    label: str
    placement: str
    chosen: bool
    found: dict[bool, Measurement]

    def times_s(self) -> list[float]:
        """Return the medians there are, out of place first."""
        return [self.found[place].median_s for place in sorted(self.found) if self.found[place].times_s]

    def wrong(self) -> int:
        """Return the wrong elements of all forms."""
        return sum(result.wrong or 0 for result in self.found.values())


@dataclass(frozen=True)
class Group:
    """All lines of one call, measured together; `why` says what the plan decides for each placement."""

    collective: Collective
    call: Call
    lines: tuple[Line, ...]
    why: dict[str, Explanation]

    @property
    def num_bytes(self) -> int:
        """The size nccl-tests prints."""
        return self.collective.num_bytes(self.call)

    def bandwidths(self, seconds: float) -> tuple[float, float]:
        """Return algorithm and bus bandwidth in GB/s."""
        algorithm = self.num_bytes / seconds / 1e9
        return algorithm, algorithm * self.collective.bus_factor(self.call.size)


class Bench:
    """A job on live ranks. Plans are switched on a twin, so that the ranks' own exchanges are left alone."""

    def __init__(self, comm: Communicator, job: Job) -> None:
        self.comm, self.job = comm, job
        twin = comm.split(0, comm.rank)
        assert twin is not None
        self.twin = twin
        self.calls = list(_calls(comm, job))
        if job.peers:
            from commlib.cli import torch_peer

            torch_peer.start(comm)

    def run(self) -> Iterator[Group]:
        """Yield each call's figures as soon as they are there."""
        deadline = time.monotonic() + self.job.seconds
        for first in self.calls[:1]:  # a processor that slept, and memory nobody has touched, are in no figure
            self._measure(*first, replace(self.job.protocol, budget_s=WARMUP_S))
        for done, (collective, call) in enumerate(self.calls):
            left_s = self.comm.broadcast_object(deadline - time.monotonic(), 0)
            share_s = max(left_s, 0.0) / (len(self.calls) - done)
            yield self._measure(collective, call, replace(self.job.protocol, budget_s=share_s))

    def close(self) -> None:
        """Leave torch's process group and the twin."""
        if self.job.peers:
            from commlib.cli import torch_peer

            torch_peer.stop()
        self.twin.close()

    def _measure(self, collective: Collective, call: Call, protocol: Protocol) -> Group:
        why = self._explain(collective, call)
        places = [place for place in self.job.places if _has_form(collective, place)]
        lines, candidates = [], []
        for algorithm in self._algorithms(collective, why):
            chosen = why[algorithm.placement].algorithm == algorithm.name
            lines.append(Line(algorithm.name, algorithm.placement, chosen, {}))
            candidates += [self._pinned(collective, algorithm, call, place) for place in places]
        if "torch" in self.job.peers:
            from commlib.cli import torch_peer

            lines.append(Line("torch", "plain", False, {}))
            candidates += [torch_peer.candidate(collective, place, plain_on(self.comm.device)) for place in places]
        results = measure(self.comm, collective, call, ordered, candidates, protocol)
        for line, of_line in zip(lines, _chunks(results, len(places)), strict=True):
            line.found.update(zip(places, of_line, strict=True))
        return Group(collective, call, tuple(lines), why)

    def _explain(self, collective: Collective, call: Call) -> dict[str, Explanation]:
        """Ask the plan once for each placement that this backend has algorithms for."""
        placements = {a.placement for a in collective.algorithms if a.backend == self.comm.backend}
        size, dtype = collective.num_bytes(call), call.dtype
        ask = partial(self.comm.explain, collective.name, size, dtype, call.redop)
        return {placement: ask(placement=placement) for placement in placements}

    def _algorithms(self, collective: Collective, why: dict[str, Explanation]) -> list[Algorithm]:
        wanted = self.job.algorithms
        ours = [a for a in collective.algorithms if a.backend == self.comm.backend]
        if wanted == ("all",):
            return ours
        chosen = [a for a in ours if why[a.placement].algorithm == a.name] if "auto" in wanted else []
        return [a for a in ours if a in chosen or a.name in wanted]

    def _pinned(self, collective: Collective, algorithm: Algorithm, call: Call, in_place: bool) -> Candidate:
        """Return the candidate that makes the public call under a plan that leaves no choice."""
        plan = Plan.only({collective.name: algorithm.name}, base=self.comm.plan)
        make = public_call(self.twin, collective)

        def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
            if reason := algorithm.refuses(call.dtype, call.redop, call.size):
                raise Unsupported(reason)
            return make(x, out, call)

        def enter() -> None:
            if self.twin.plan is not plan:
                self.twin.use(plan)

        empty = self._symmetric if algorithm.placement == "symmetric" else plain_on(self.comm.device)
        return Candidate(algorithm.name, prepare, in_place, empty, enter)

    def _symmetric(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return self.twin.empty((elements,), dtype)


def arena_bytes(job: Job) -> int:
    """Return the symmetric memory that the largest call's buffers take: a pair for each form, in rotation."""
    forms = 2 * (False in job.places) + (True in job.places)
    return job.protocol.buffers * forms * (max(job.sizes) + (1 << 16)) + (1 << 20)


def undefined(job: Job) -> list[str]:
    """Return the reductions that were asked for and that no backend defines."""
    reducing = any(COLLECTIVES[name].reduces for name in job.ops)
    pairs = itertools.product(job.redops if reducing else (), job.dtypes)
    return [f"{redop} of {str(d).removeprefix('torch.')}" for redop, d in pairs if not reducible(d, redop)]


def _calls(comm: Communicator, job: Job) -> Iterator[tuple[Collective, Call]]:
    for name, dtype in itertools.product(job.ops, job.dtypes):
        collective = COLLECTIVES[name]
        for redop in job.redops if collective.reduces else job.redops[:1]:
            if collective.reduces and not reducible(dtype, redop):
                continue
            call = Call(comm.rank, comm.size, 0, dtype, redop if collective.reduces else "sum", job.root)
            yield from ((collective, replace(call, count=count)) for count in _counts(collective, call, job.sizes))


def _counts(collective: Collective, call: Call, sizes: Sequence[int]) -> list[int]:
    """Return the counts whose sizes come closest from below; a collective without data has one."""
    per_element = collective.num_bytes(replace(call, count=PROBE_COUNT)) / PROBE_COUNT
    if per_element == 0:
        return [0]
    return sorted({max(1, int(size / per_element)) for size in sizes})


def _has_form(collective: Collective, in_place: bool) -> bool:
    return collective.in_place is not None if in_place else collective.out_of_place


def _chunks(results: list[Measurement], size: int) -> Iterator[list[Measurement]]:
    return (results[at : at + size] for at in range(0, len(results), size))
