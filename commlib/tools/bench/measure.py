"""Measures a job on live ranks: every algorithm of every call asked for, and other libraries beside it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from commlib import env
from commlib.collectives import COLLECTIVES, Algorithm, Call, Collective
from commlib.collectives.reference import ordered
from commlib.communicator import Communicator
from commlib.counts import counted
from commlib.plan import Explanation, Plan
from commlib.tools import timing
from commlib.tools.baselines import AUTO, PROBE, load
from commlib.tools.baselines.peer import Peer, refusing
from commlib.tools.bench.job import BEST, Job, calls, combinations, forms, joined, left_out, rounded, shape_of
from commlib.tools.bench.limit import measure_limit
from commlib.tools.bench.messages import NOTE, SYNC, Compute, Overlapped, measure_overlap, started_by
from commlib.tools.bench.result import (
    AGREE,
    KIND,
    Bounds,
    Config,
    Fit,
    Limit,
    Measured,
    PlanInForce,
    Skipped,
    Speedup,
    Times,
    Way,
    averages,
    measured,
    median_us,
    spread,
)
from commlib.tools.report.document import Report, Row
from commlib.tools.report.measured import percentiles_us, ratio_row
from commlib.tools.report.run import UNREAD, Output, until_it_ends
from commlib.tools.report.schema import to_json
from commlib.tools.report.view import grouped

WARMUP_S = 0.3
START_S = 2.0  # for the limit, the peers and the first calls, about
SLOW_S = 0.1  # of a call that is measured once where the time is short, at least
PERCENTILES = (0, 10, 50, 90, 99, 100)
Made = tuple[Row, timing.Candidate]  # what its row has of who makes the call, and how it is made
Timed = tuple[Row, timing.Measurement]


def main(job: Job, output: Output, command: str) -> int:
    """Measure until the end, an error or Ctrl-C, and report what was measured; return the exit code."""
    with joined(job) as comm:
        output.speaks = comm.rank == 0
        bench = Bench(comm, job, command, output.lacks())
        code = until_it_ends(partial(_measure, bench, output), output.finish)
        if code:
            return code  # nobody may come to end what the ranks share
        bench.close()
        return int(bench.wrong > 0) if output.wanted else UNREAD


def _measure(bench: Bench, output: Output) -> None:
    output.open(bench, len(bench.calls))
    bench.start()
    output.open(bench, len(bench.calls))  # what follows of the head: the limit, the baseline, and what is left out
    for rows in bench.run(output.show):
        output.rows(rows)


class Bench(Report):
    """A job on live ranks. Plans are switched on a twin, so that the ranks' own exchanges are left alone."""

    def __init__(self, comm: Communicator, job: Job, command: str, notes: Sequence[str] = ()) -> None:
        super().__init__(KIND, command)
        self.comm, self.job, self.wrong = comm, job, 0
        self.limit = Limit(None, None, "")
        self.baseline: str | None = None
        self.compute: Compute | None = None
        self.calls = list(calls(comm, job))
        kinds = [job.window.note()] if job.window else [NOTE] if job.overlap else []
        self.notes = [*kinds, *rounded(job), *notes]
        self.start_s = age_s() + START_S

    def start(self) -> None:
        comm, job = self.comm, self.job
        self.limit = measure_limit(comm)
        self.twin = timing.twin_of(comm)
        peers, absent = _started(comm, job)
        self.job = replace(job, peers=peers)
        self.baseline = self._baseline()
        self.compute = Compute(comm) if job.overlap else None
        self.notes += [f"skipped: {what}" for what in (*absent, *self._skipped())]

    def _baseline(self) -> str | None:
        """Return the label that speed-ups are over: the first peer that makes calls, unless the job names one."""
        running = [label for peer in self.job.peers for label in peer.labels if not label.startswith(PROBE)]
        if self.job.baseline == BEST and not running:
            return None
        return self.job.baseline or next(iter(running), None)

    def _skipped(self) -> Iterator[str]:
        yield from left_out(self.job)
        for name, op in itertools.product(self.job.algorithms, self.job.ops):
            if name not in ("all", "auto", *(algorithm.name for algorithm in self._here(COLLECTIVES[op]))):
                yield f"{op} has no {name} on {self.comm.backend}"

    def _config(self) -> Config:
        job, comm = self.job, self.comm
        sources = [(field, of) for of in (job.protocol, job) for field in fields(Config) if hasattr(of, field.name)]
        values = {field.name: getattr(of, field.name) for field, of in sources}
        values |= {field.name: values[field.name] or None for field, _ in sources if field.default is None}
        values |= {
            "ranks": comm.size,
            "backend": comm.backend,
            "cores_per_rank": len(os.sched_getaffinity(0)),
            "block_us": timing.block_seconds(comm) * 1e6,
            "shapes": list(dict.fromkeys(shape.text for shape in job.shapes)) or None,
            "window": job.window.messages if job.window else None,
            "pairs": job.window.pairs if job.window else None,
            "peers": [peer.name for peer in job.peers],
            "baseline": self.baseline,
            "agree": AGREE,
            "types": [str(dtype).removeprefix("torch.") for dtype in job.dtypes],
            "start_s": round(self.start_s, 1),
        }
        return Config(**values)

    def content(self) -> dict[str, Any]:
        plan = self.comm.plan
        parts = {
            "config": self._config(),
            "plan": PlanInForce(plan.digest, Path(plan.source).name, _match(plan)),
            "limit": self.limit,
            "rows": self.rows,
            "fits": list(fits(self.rows, self.comm.size)),
            "notes": self.notes,
            "out_of_bounds": Bounds(self.wrong, not self.wrong),
            "average_bus_bandwidth": averages(self.rows),
        }
        return {name: to_json(part) for name, part in parts.items()}

    def run(self, show: Callable[[int, str], bool]) -> Iterator[list[Row]]:
        """Yield each call's rows as soon as they are there, as long as `show` wants more on rank 0.

        It is called with how many calls are done, and the next.
        """
        deadline = time.monotonic() + self.job.seconds
        slow_s = min(self.job.protocol.slow_s, max(SLOW_S, self.job.seconds / len(self.calls)))
        for first in self.calls[:1]:  # a processor that slept, and memory nobody has touched, are in no figure
            self._measure(*first, replace(self.job.protocol, budget_s=WARMUP_S, check=False))
        for done, (collective, call) in enumerate(self.calls):
            wanted = show(done, f"{collective.name} {counted(collective.num_bytes(call), 'byte')}")
            left_s, wanted = self.comm.broadcast_object((deadline - time.monotonic(), wanted), 0)
            if not wanted:
                return
            share_s = max(left_s, 0.0) / (len(self.calls) - done)
            timed = self._measure(collective, call, replace(self.job.protocol, budget_s=share_s, slow_s=slow_s))
            rows = [to_json(self._row(row, result, timed)) for row, result in timed]
            self.wrong += sum(result.wrong or 0 for _, result in timed)
            self.rows += rows
            yield rows

    def close(self) -> None:
        for peer in self.job.peers:
            peer.stop()
        self.twin.close()

    def _measure(self, collective: Collective, call: Call, protocol: timing.Protocol) -> list[Timed]:
        """Measure all ways to make a call together; return how their rows begin, and their figures."""
        ways = [*self._ours(collective, call), *self._others(collective)]
        candidates = [candidate for _, candidate in ways]
        if self.compute is not None:
            results = measure_overlap(self.comm, (collective, call), candidates, protocol, self.compute)
        else:
            results = timing.measure(self.comm, collective, call, ordered, candidates, protocol)
        shared = {
            "op": collective.name,
            "size": collective.num_bytes(call),
            "count": call.count,
            "type": str(call.dtype).removeprefix("torch."),
            "redop": call.redop if collective.reduces else None,
            "root": call.root if collective.rooted else None,
            "shape": shape_of(self.job, collective, call),
            "mode": self.job.mode,
        }
        rows = ({**shared, **way, "in_place": candidate.in_place} for way, candidate in ways)
        return list(zip(rows, results, strict=True))

    def _ours(self, collective: Collective, call: Call) -> Iterator[Made]:
        """Yield our algorithms with the plan's parameters and with those asked for, in each form."""
        wanted, comm = self.job.algorithms, self.comm
        # A window is measured with calls that are waited for later, and with others.
        waits = (True, False) if self.job.window else (self.job.overlap,)
        for algorithm in self._here(collective):
            how: dict[str, Any] = {"placement": algorithm.placement, "mode": self.job.mode}
            size = collective.num_bytes(call)
            why = comm.explain(collective.name, size, call.dtype, call.redop, async_op=self.job.overlap, **how)
            picked = why.algorithm == algorithm.name
            if not ("all" in wanted or algorithm.name in wanted or ("auto" in wanted and picked)):
                continue
            for params, later in itertools.product((None, *combinations(self.job, algorithm)), waits):
                values = ",".join(f"{name}={value}" for name, value in (params or {}).items())
                label = " ".join(filter(None, [algorithm.name, values, SYNC * (later != waits[0])]))
                plans_choice = picked and params is None and later == waits[0]
                way = _way(label, algorithm.placement, True, why if plans_choice else None)
                plan = Plan.only({collective.name: algorithm.name}, base=comm.plan, params=params)
                for in_place in forms(self.job, collective):
                    yield way, pinned_to(self.twin, collective, algorithm, plan, in_place, later)

    def _others(self, collective: Collective) -> Iterator[Made]:
        for peer in self.job.peers:
            in_forms = [peer.lines(self.comm, collective, in_place) for in_place in forms(self.job, collective)]
            for label, *candidates in zip(peer.labels, *in_forms, strict=True):
                way = {**_way(label, "plain", False, None), "library": peer.title or peer.name}
                yield from ((way, self._form_of(peer, candidate)) for candidate in candidates)

    def _form_of(self, peer: Peer, candidate: timing.Candidate) -> timing.Candidate:
        """Return a peer's candidate with the calls that --window and --overlap ask for."""
        if self.job.window and not peer.reason:
            return replace(candidate, prepare=self.job.window.of_peer(peer))
        return started_by(peer, candidate) if self.job.overlap else candidate

    def _here(self, collective: Collective) -> list[Algorithm]:
        return [algorithm for algorithm in collective.algorithms if algorithm.backend == self.comm.backend]

    def _row(self, row: Row, result: timing.Measurement, timed: Sequence[Timed]) -> Measured | Skipped:
        if not result.times_s:
            return Skipped(**row, skipped=result.skipped)
        window, ranks = self.job.window, self.comm.size
        of_sender = row["size"] * (window.messages if window else 1) / result.median_s / 1e9
        bus = of_sender * COLLECTIVES[row["op"]].bus_factor(ranks)
        time_us = percentiles_us(result, PERCENTILES)
        comparable = row["ours"] or spread(time_us) <= AGREE
        on_gpu, limit = self.comm.device.type == "cuda", self.limit.at(row["size"])
        return Measured(
            **row,
            time_us=Times(**time_us),
            iterations=result.iterations,
            blocks=len(result.times_s),
            algbw=round(of_sender * (window.senders(ranks) if window else 1), 6),
            busbw=round(bus, 6),
            of_limit=round(bus / limit, 6) if limit and row["size"] else None,
            wrong=result.wrong,
            host_us=round(median(result.issue_s) * 1e6, 4) if on_gpu and result.issue_s else None,
            speedup=self._speedup(result, [each for each in timed if each[0]["in_place"] == row["in_place"]])
            if comparable
            else None,
            **(window.figures(result.median_s, ranks) if window else {}),
            overlap=result.overlap() if isinstance(result, Overlapped) else None,
        )

    def _speedup(self, result: timing.Measurement, timed: Sequence[Timed]) -> Speedup | None:
        """Compare with the baseline in the same form; as the best, with the fastest peer whose values are right."""
        if self.baseline == BEST:
            others = [each for each in timed if not each[0]["ours"] and each[1].wrong == 0]
        else:
            others = [each for each in timed if each[0]["algorithm"] == self.baseline]
        row, other = min((each for each in others if each[1].times_s), key=_median_s, default=({}, result))
        if other is result or spread(percentiles_us(other)) > AGREE:
            return None
        ratio = ratio_row(other.times_s, result.times_s, self.job.protocol.seed)
        return None if ratio is None else Speedup(row["algorithm"], **ratio)


def _median_s(timed: Timed) -> float:
    return timed[1].median_s


def _started(comm: Communicator, job: Job) -> tuple[tuple[Peer, ...], list[str]]:
    wanted = [*map(load, AUTO[comm.device.type] if job.auto else ()), *job.peers]
    cores = os.cpu_count() or 1
    for peer in wanted:
        if job.auto and peer.name == "mpi" and comm.size > cores:
            peer.reason = f"{comm.size} ranks share {counted(cores, 'core')}, where MPI spins; --peers mpi measures it"
        else:
            peer.start(comm, job.protocol.graph)
    absent = [f"peer {peer.name}: {peer.reason}" for peer in wanted if peer.reason]
    return tuple(peer for peer in wanted if not peer.reason), absent


def age_s() -> float:
    """Return for how long the command runs: ranks that a launcher started count from its start."""
    pid = os.getppid() if env.LOCAL_SIZE.is_set() else os.getpid()
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _match(plan: Plan) -> str:
    """Say how far the plan is of this machine: "here" where it was measured on one like it."""
    if plan.source.startswith("plans/") or not plan.fit.total:
        return "shipped"
    return "; ".join(plan.fit.differences) or "here"


def pinned_to(
    twin: Communicator, collective: Collective, algorithm: Algorithm, plan: Plan, in_place: bool, later: bool = False
) -> timing.Candidate:
    """Return the candidate that makes the public call under a plan that leaves no choice."""
    prepare, enter = timing.pinned(twin, collective, algorithm, plan, later)
    if in_place and not algorithm.in_place:
        prepare = refusing("it cannot work in place")
    empty = twin.empty if algorithm.placement == "symmetric" else timing.plain_on(twin.device)
    return timing.Candidate(algorithm.name, prepare, in_place, empty, enter)


def _way(label: str, placement: str, ours: bool, why: Explanation | None) -> Row:
    """Return what a row has of who makes the call, and, where the plan picks it, why."""
    return {
        "algorithm": label,
        "ours": ours,
        "placement": placement,
        "chosen": why is not None,
        "rule": why.rule if why else None,
        # The name of the plan's file but not its place.
        "why": str(replace(why, source=Path(why.source).name)) if why else None,
    }


def fits(rows: Sequence[Row], ranks: int) -> Iterator[Fit]:
    plain = [row for row in measured(rows) if "window" not in row]  # the size of a window's row is one message's
    way = [field.name for field in fields(Way)]
    for series in grouped(plain, itemgetter(*way)):
        times = [median_us(row) * 1e-6 for row in series]
        fit = timing.fit_latency_and_rate([row["size"] for row in series], times) if min(times) > 0 else None
        if fit is None:
            continue
        factor = COLLECTIVES[series[0]["op"]].bus_factor(ranks)
        yield Fit(
            **{key: series[0][key] for key in way},
            latency_us=round(fit.latency_s * 1e6, 4),
            gbps=round(factor / fit.byte_s / 1e9, 6) if fit.byte_s and factor else None,
            half_bytes=round(fit.latency_s / fit.byte_s) if fit.byte_s else None,
            error=round(fit.error, 6),
        )
