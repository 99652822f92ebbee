"""Measures a job on live ranks: every algorithm of every call asked for, and other libraries beside it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from commlib.collectives import COLLECTIVES, Algorithm, Call, Collective
from commlib.collectives.reference import ordered
from commlib.communicator import Communicator
from commlib.counts import counted
from commlib.plan import Explanation, Plan
from commlib.tools.baselines import AUTO, PROBE, Peer, load
from commlib.tools.baselines.peer import refusing
from commlib.tools.bench.document import config_of, fits
from commlib.tools.bench.job import BEST, Job, calls, combinations, forms, left_out, rounded, shape_of
from commlib.tools.bench.overlap import NOTE, Compute, Overlapped, measure_overlap, theirs
from commlib.tools.bench.rows import AGREE, KIND, averages, spread
from commlib.tools.bench.window import SYNC
from commlib.tools.report.document import Report, Row
from commlib.tools.report.measured import percentiles_us, ratio_row
from commlib.tools.timing import Candidate, Limit, Measurement, Protocol, measure, pinned, plain_on, twin_of

WARMUP_S = 0.3
PERCENTILES = (0, 10, 50, 90, 99, 100)
Way = tuple[Row, Candidate]  # what its row says of who makes the call, and how it is made
Found = tuple[Row, Measurement]
Why = Mapping[str, Explanation]  # what the plan decides for each placement


class Bench(Report):
    """A job on live ranks. Plans are switched on a twin, so that the ranks' own exchanges are left alone."""

    def __init__(self, comm: Communicator, job: Job, limit: Limit, command: str, notes: Sequence[str] = ()) -> None:
        super().__init__(KIND, command)
        self.comm, self.limit, self.wrong = comm, limit, 0
        self.twin = twin_of(comm)
        self.calls = list(calls(comm, job))
        peers, absent = _started(comm, job)
        self.job = replace(job, peers=peers)
        self.baseline = self._baseline()
        self.config = config_of(self.job, comm, self.baseline)
        self.compute = Compute(comm) if job.overlap else None
        kinds = [job.window.note()] if job.window else [NOTE] if job.overlap else []
        skipped = (f"skipped: {what}" for what in (*absent, *self._skipped()))
        self.notes = [*notes, *kinds, *rounded(job), *skipped]

    def _baseline(self) -> str | None:
        """Return the label that speed-ups are over: the first peer that makes calls, unless the job names one."""
        here = [label for peer in self.job.peers for label in peer.labels]
        running = [label for label in here if not label.startswith(PROBE)]
        if self.job.baseline == BEST and not running:
            return None
        return self.job.baseline or next(iter(running), None)

    def _skipped(self) -> Iterator[str]:
        """Yield what is not measured, and why."""
        yield from left_out(self.job)
        for name in self.job.algorithms:
            for op in self.job.ops:
                if name not in ("all", "auto", *(algorithm.name for algorithm in self._here(COLLECTIVES[op]))):
                    yield f"{op} has no {name} on {self.comm.backend}"

    def content(self) -> dict[str, Any]:
        """Return how it was measured, the rows, and what follows from them."""
        plan = self.comm.plan
        return {
            "config": self.config,
            "plan": {"digest": plan.digest, "source": Path(plan.source).name, "match": _match(plan)},
            "limit": asdict(self.limit),
            "rows": self.rows,
            "fits": list(fits(self.rows, self.comm.size)),
            "notes": self.notes,
            "out_of_bounds": {"count": self.wrong, "okay": not self.wrong},
            "average_bus_bandwidth": averages(self.rows),
        }

    def run(self, show: Callable[[int, str], bool]) -> Iterator[list[Row]]:
        """Yield each call's rows as soon as they are there, as long as `show` wants more on rank 0.

        It is told how many calls are done, and the next.
        """
        deadline = time.monotonic() + self.job.seconds
        for first in self.calls[:1]:  # a processor that slept, and memory nobody has touched, are in no figure
            self._measure(*first, replace(self.job.protocol, budget_s=WARMUP_S))
        for done, (collective, call) in enumerate(self.calls):
            wanted = show(
                done, f"{collective.name} of {collective.num_bytes(call)} B" if call.count else collective.name
            )
            left_s, wanted = self.comm.broadcast_object((deadline - time.monotonic(), wanted), 0)
            if not wanted:
                return
            share_s = max(left_s, 0.0) / (len(self.calls) - done)
            found = self._measure(collective, call, replace(self.job.protocol, budget_s=share_s))
            rows = [{**row, **self._figures(row, result, found)} for row, result in found]
            self.wrong += sum(result.wrong or 0 for _, result in found)
            self.rows += rows
            yield rows

    def close(self) -> None:
        """Leave the peers and the twin."""
        for peer in self.job.peers:
            peer.stop()
        self.twin.close()

    def _measure(self, collective: Collective, call: Call, protocol: Protocol) -> list[Found]:
        """Measure all ways to make a call together; return how their rows begin, and their figures."""
        ways = [*self._ours(collective, call), *self._theirs(collective)]
        candidates = [candidate for _, candidate in ways]
        if self.compute is not None:
            results = measure_overlap(self.comm, (collective, call), candidates, protocol, self.compute)
        else:
            results = measure(self.comm, collective, call, ordered, candidates, protocol)
        shared = {
            "op": collective.name,
            "size": collective.num_bytes(call),
            "count": call.count,
            "type": str(call.dtype).removeprefix("torch."),
            "redop": call.redop if collective.reduces else None,
            "root": call.root if collective.rooted else None,
        }
        if shape := shape_of(self.job, collective, call):
            shared["shape"] = shape
        rows = ({**shared, **way, "mode": self.job.mode, "in_place": candidate.in_place} for way, candidate in ways)
        return list(zip(rows, results, strict=True))

    def _ours(self, collective: Collective, call: Call) -> Iterator[Way]:
        """Yield our algorithms with the plan's parameters and with those asked for, in each form."""
        here, wanted = self._here(collective), self.job.algorithms
        why = {placement: self._explain(collective, call, placement) for placement in {a.placement for a in here}}
        for algorithm in here:
            decided = why[algorithm.placement]
            picked = decided.algorithm == algorithm.name
            if not ("all" in wanted or algorithm.name in wanted or ("auto" in wanted and picked)):
                continue
            for params, later in itertools.product((None, *combinations(self.job, algorithm)), self._waits()):
                first = params is None and later == self._waits()[0]
                values = ",".join(f"{name}={value}" for name, value in (params or {}).items())
                label = " ".join(filter(None, [algorithm.name, values, SYNC * (later != self._waits()[0])]))
                way = _way(label, algorithm.placement, True, decided if picked and first else None)
                plan = Plan.only({collective.name: algorithm.name}, base=self.comm.plan, params=params)
                for in_place in forms(self.job, collective):
                    yield way, pinned_to(self.twin, collective, algorithm, plan, in_place, later)

    def _waits(self) -> tuple[bool, ...]:
        """Return whether calls are waited for later; a window is measured both ways."""
        return (True, False) if self.job.window else (self.job.overlap,)

    def _theirs(self, collective: Collective) -> Iterator[Way]:
        for peer in self.job.peers:
            in_forms = [peer.lines(self.comm, collective, in_place) for in_place in forms(self.job, collective)]
            for label, *candidates in zip(peer.labels, *in_forms, strict=True):
                way = {**_way(label, "plain", False, None), "library": peer.title or peer.name}
                yield from ((way, self._form_of(peer, candidate)) for candidate in candidates)

    def _form_of(self, peer: Peer, candidate: Candidate) -> Candidate:
        """Return a peer's candidate with the calls that --window and --overlap ask for."""
        if self.job.window and not peer.reason:
            return replace(candidate, prepare=self.job.window.theirs(peer))
        return theirs(peer, candidate) if self.job.overlap else candidate

    def _here(self, collective: Collective) -> list[Algorithm]:
        return [algorithm for algorithm in collective.algorithms if algorithm.backend == self.comm.backend]

    def _explain(self, collective: Collective, call: Call, placement: str) -> Explanation:
        size, job = collective.num_bytes(call), self.job
        how: dict[str, Any] = {"placement": placement, "mode": job.mode, "async_op": job.overlap}
        return self.comm.explain(collective.name, size, call.dtype, call.redop, **how)

    def _figures(self, row: Row, result: Measurement, found: Sequence[Found]) -> Row:
        """Return the rest of a row; `found` are all of its call."""
        if not result.times_s:
            return {"skipped": result.skipped}
        window, ranks = self.job.window, self.comm.size
        of_sender = row["size"] * (window.messages if window else 1) / result.median_s / 1e9
        algorithm = of_sender * (window.senders(ranks) if window else 1)
        bus = of_sender * COLLECTIVES[row["op"]].bus_factor(ranks)
        time_us, in_place = percentiles_us(result, PERCENTILES), row["in_place"]
        unsteady = not row["ours"] and spread(time_us) > AGREE
        on_gpu, limit = self.comm.device.type == "cuda", self.limit.at(row["size"])
        return {
            "time_us": time_us,
            "iterations": result.iterations,
            "blocks": len(result.times_s),
            "algbw": round(algorithm, 6),
            "busbw": round(bus, 6),
            "of_limit": round(bus / limit, 6) if limit and row["size"] else None,
            "wrong": result.wrong,
            "host_us": round(median(result.issue_s) * 1e6, 4) if on_gpu and result.issue_s else None,
            **(window.figures(result.median_s, ranks) if window else {}),
            **(result.figures() if isinstance(result, Overlapped) else {}),
            "speedup": None if unsteady else self._speedup(result, [f for f in found if f[0]["in_place"] == in_place]),
        }

    def _speedup(self, result: Measurement, found: Sequence[Found]) -> Row | None:
        """Compare with the baseline in the same form; as the best, with the fastest peer whose values are right."""
        if self.baseline == BEST:
            right = [pair for pair in found if not pair[0]["ours"] and pair[1].wrong == 0 and pair[1].times_s]
            rivals = sorted(right, key=lambda pair: pair[1].median_s)
        else:
            rivals = [pair for pair in found if pair[0]["algorithm"] == self.baseline]
        if not rivals or rivals[0][1] is result or not rivals[0][1].times_s:
            return None
        if spread(percentiles_us(rivals[0][1])) > AGREE:
            return None
        ratio = ratio_row(rivals[0][1].times_s, result.times_s, self.job.protocol.seed)
        return None if ratio is None else {"over": rivals[0][0]["algorithm"], **ratio}


def _started(comm: Communicator, job: Job) -> tuple[tuple[Peer, ...], list[str]]:
    """Start the peers; return those that make calls, and why the others do not."""
    wanted = [*map(load, AUTO[comm.device.type] if job.auto else ()), *job.peers]
    running, absent = [], []
    for peer in wanted:
        if job.auto and peer.name == "mpi" and comm.size > (os.cpu_count() or 1):
            cores = counted(os.cpu_count() or 1, "core")
            peer.reason = f"{comm.size} ranks share {cores}, where MPI spins; --peers mpi measures it"
        else:
            peer.start(comm, job.protocol.graph)
        if peer.reason:
            absent.append(f"peer {peer.name}: {peer.reason}")
        else:
            running.append(peer)
    return tuple(running), absent


def _match(plan: Plan) -> str:
    """Say how far the plan is of this machine: "here" where it was measured on one like it."""
    if plan.source.startswith("plans/") or not plan.fit.total:
        return "shipped"
    return "; ".join(plan.fit.differences) or "here"


def pinned_to(
    twin: Communicator, collective: Collective, algorithm: Algorithm, plan: Plan, in_place: bool, later: bool = False
) -> Candidate:
    """Return the candidate that makes the public call under a plan that leaves no choice."""
    prepare, enter = pinned(twin, collective, algorithm, plan, later)
    if in_place and not algorithm.in_place:
        prepare = refusing("it cannot work in place")
    empty = twin.empty if algorithm.placement == "symmetric" else plain_on(twin.device)
    return Candidate(algorithm.name, prepare, in_place, empty, enter)


def _way(label: str, placement: str, ours: bool, why: Explanation | None) -> Row:
    """Return what a row says of who makes the call, and, where the plan picks it, why."""
    return {
        "algorithm": label,
        "ours": ours,
        "placement": placement,
        "chosen": why is not None,
        "rule": why.rule if why else None,
        # The name of the plan's file but not its place.
        "why": str(replace(why, source=Path(why.source).name)) if why else None,
    }
