"""Measures a job on live ranks: every algorithm of every call asked for, and other libraries beside it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from commlib.bench.job import BEST, Job, calls, combinations, forms, left_out, params_text
from commlib.collectives import COLLECTIVES, Algorithm, Call, Collective
from commlib.collectives.reference import ordered
from commlib.errors import Unsupported
from commlib.peers import PROBE
from commlib.plan import Explanation, Plan
from commlib.timing import Candidate, Measurement, Protocol, Run, measure, plain_on, public_call

if TYPE_CHECKING:
    from commlib.communicator import Communicator

WARMUP_S = 0.3


@dataclass(frozen=True)
class Line:
    """One way to make a call, out of place (False) and in place (True)."""

    label: str
    placement: str
    ours: bool
    chosen: bool
    found: dict[bool, Measurement]

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

    @property
    def bus_factor(self) -> float:
        """What turns algorithm bandwidth into bus bandwidth."""
        return self.collective.bus_factor(self.call.size)


class Bench:
    """A job on live ranks. Plans are switched on a twin, so that the ranks' own exchanges are left alone."""

    def __init__(self, comm: Communicator, job: Job) -> None:
        self.comm, self.job = comm, job
        twin = comm.split(0, comm.rank)
        assert twin is not None
        self.twin = twin
        self.calls = list(calls(comm, job))
        self.peers = job.peers
        for peer in self.peers:
            peer.start(comm, job.protocol.graph)

    @property
    def baseline(self) -> str | None:
        """The label that speed-ups are over: the first peer that makes calls, unless the job names one."""
        here = [label for peer in self.peers if not peer.reason for label in peer.labels]
        running = [label for label in here if not label.startswith(PROBE)]
        if self.job.baseline == BEST and not running:
            return None
        return self.job.baseline or next(iter(running), None)

    def notes(self) -> list[str]:
        """Return what is not measured, and why."""
        skipped = left_out(self.job)
        skipped += [f"peer {peer.name}: {peer.reason}" for peer in self.peers if peer.reason]
        skipped += [
            f"{op} has no {name} on {self.comm.backend}"
            for name in self.job.algorithms
            if name not in ("all", "auto")
            for op in self.job.ops
            if not any(a.name == name for a in self._ours(COLLECTIVES[op]))
        ]
        return [f"skipped: {what}" for what in skipped]

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
        """Leave the peers and the twin."""
        for peer in self.peers:
            peer.stop()
        self.twin.close()

    def _measure(self, collective: Collective, call: Call, protocol: Protocol) -> Group:
        why = self._explain(collective, call)
        places = forms(self.job, collective)
        lines: list[Line] = []
        candidates: list[Candidate] = []
        for algorithm in self._algorithms(collective, why):
            for params in (None, *combinations(self.job, algorithm)):
                label = algorithm.name if params is None else f"{algorithm.name} {params_text(params)}"
                chosen = params is None and why[algorithm.placement].algorithm == algorithm.name
                lines.append(Line(label, algorithm.placement, True, chosen, {}))
                plan = Plan.only({collective.name: algorithm.name}, base=self.comm.plan, params=params)
                candidates += [self._pinned(collective, algorithm, plan, place) for place in places]
        for peer in self.peers:
            lines += [Line(label, "plain", False, False, {}) for label in peer.labels]
            in_forms = [peer.lines(self.comm, collective, place) for place in places]
            candidates += itertools.chain.from_iterable(zip(*in_forms, strict=True))
        results = measure(self.comm, collective, call, ordered, candidates, protocol)
        for line, of_line in zip(lines, _chunks(results, len(places)), strict=True):
            line.found.update(zip(places, of_line, strict=True))
        return Group(collective, call, tuple(lines), why)

    def _explain(self, collective: Collective, call: Call) -> dict[str, Explanation]:
        """Ask the plan once for each placement that this backend has algorithms for."""
        size, dtype = collective.num_bytes(call), call.dtype
        ask = partial(self.comm.explain, collective.name, size, dtype, call.redop, mode=self.job.mode)
        return {placement: ask(placement=placement) for placement in {a.placement for a in self._ours(collective)}}

    def _ours(self, collective: Collective) -> list[Algorithm]:
        return [a for a in collective.algorithms if a.backend == self.comm.backend]

    def _algorithms(self, collective: Collective, why: dict[str, Explanation]) -> list[Algorithm]:
        wanted = self.job.algorithms
        ours = self._ours(collective)
        if "all" in wanted:
            return ours
        chosen = [a for a in ours if why[a.placement].algorithm == a.name] if "auto" in wanted else []
        return [a for a in ours if a in chosen or a.name in wanted]

    def _pinned(self, collective: Collective, algorithm: Algorithm, plan: Plan, in_place: bool) -> Candidate:
        """Return the candidate that makes the public call under a plan that leaves no choice."""
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


def _chunks(results: list[Measurement], size: int) -> Iterator[list[Measurement]]:
    return (results[at : at + size] for at in range(0, len(results), size))
