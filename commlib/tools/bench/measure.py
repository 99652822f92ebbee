"""Measures a job on live ranks: every algorithm of every call asked for, next to other libraries."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from commlib.collectives import COLLECTIVES, Algorithm, Call, Collective
from commlib.collectives.reference import ordered
from commlib.communicator import Communicator
from commlib.counts import counted
from commlib.plan import Plan
from commlib.tools import timing
from commlib.tools.baselines import AUTO, load
from commlib.tools.bench.job import Job, calls, facts, forms, joined, left_out
from commlib.tools.bench.result import KIND, Measured, Skipped
from commlib.tools.launch import UNREAD
from commlib.tools.report.document import Report, Row, to_json
from commlib.tools.report.formats import percentiles_us
from commlib.tools.report.run import Output, until_it_ends

START_S = 3.0  # for the other libraries and the first calls, about
WARMUP_S = 0.3
SLOW_S = 0.1  # of a call that is measured once where the time is short, at least


def main(job: Job, output: Output, command: str) -> int:
    """Measure until the end, an error or Ctrl-C, and report what was measured; return the exit code."""
    with joined(job) as comm:
        output.speaks = comm.rank == 0
        bench = Bench(comm, job, command)
        code = until_it_ends(partial(_measure, bench, output), output.finish)
        if code:
            return code  # nobody may come to end what the ranks share
        bench.close()
        return UNREAD if output.unread else int(bench.wrong > 0)


def _measure(bench: Bench, output: Output) -> None:
    output.open(bench, len(bench.calls))
    bench.start()
    output.open(bench, len(bench.calls))  # what follows of the head: what is left out, and the other libraries
    for rows in bench.run(output.show):
        output.rows(rows)


class Bench(Report):
    """A job on live ranks. Plans are switched on a twin, so that the ranks' own exchanges are left alone."""

    def __init__(self, comm: Communicator, job: Job, command: str) -> None:
        super().__init__(KIND, command)
        self.comm, self.job, self.wrong = comm, replace(job, peers=()), 0
        self.calls, self._peers = list(calls(comm, job)), job.peers
        self.start_s = round(_age_s() + START_S, 1)

    def start(self) -> None:
        comm, job = self.comm, self.job
        self.twin = timing.twin_of(comm)
        wanted = [*map(load, AUTO[comm.device.type] if job.auto else ()), *self._peers]
        for peer in wanted:
            peer.start(comm, job.protocol.graph)
        self.job = replace(job, peers=tuple(peer for peer in wanted if not peer.reason))
        absent = [f"peer {peer.name}: {peer.reason}" for peer in wanted if peer.reason]
        self.notes += [f"skipped: {what}" for what in (*absent, *left_out(job), *self._unknown())]

    def _unknown(self) -> Iterator[str]:
        for name, op in itertools.product(self.job.algorithms, self.job.ops):
            if name not in ("all", "auto", *(algorithm.name for algorithm in self._here(COLLECTIVES[op]))):
                yield f"{op} has no {name} on {self.comm.backend}"

    def content(self) -> dict[str, Any]:
        job, comm, protocol = self.job, self.comm, self.job.protocol
        config = {
            "ranks": comm.size,
            "backend": comm.backend,
            "mode": job.mode,
            "cores_per_rank": len(os.sched_getaffinity(0)),
            "sizes": job.sizes,
            "types": [str(dtype).removeprefix("torch.") for dtype in job.dtypes],
            "block_us": timing.block_seconds(comm) * 1e6,
            "blocks": protocol.blocks,
            "iterations": protocol.iterations,
            "check": protocol.check,
            "seconds": job.seconds,
            "start_s": self.start_s,
            "peers": [peer.name for peer in job.peers],
        }
        plan = {"digest": comm.plan.digest, "source": Path(comm.plan.source).name, "match": _match(comm.plan)}
        bounds = {"count": self.wrong, "okay": not self.wrong}
        return {"config": config, "plan": plan, "out_of_bounds": bounds, **super().content()}

    def run(self, show: Callable[[int, str], bool]) -> Iterator[list[Row]]:
        """Yield each call's rows as long as `show(how many are done, the next one)` wants more on rank 0."""
        deadline = time.monotonic() + self.job.seconds
        slow_s = min(self.job.protocol.slow_s, max(SLOW_S, self.job.seconds / len(self.calls)))
        for first in self.calls[:1]:  # a processor that slept, and memory nobody has touched, are in no figure
            list(self._measure(*first, replace(self.job.protocol, budget_s=WARMUP_S, check=False)))
        for done, (collective, call) in enumerate(self.calls):
            wanted = show(done, f"{collective.name} {counted(collective.num_bytes(call), 'byte')}")
            left_s, wanted = self.comm.broadcast_object((deadline - time.monotonic(), wanted), 0)
            if not wanted:
                return
            share_s = max(left_s, 0.0) / (len(self.calls) - done)
            rows = list(self._measure(collective, call, replace(self.job.protocol, budget_s=share_s, slow_s=slow_s)))
            self.rows += rows
            yield rows

    def close(self) -> None:
        for peer in self.job.peers:
            peer.stop()
        self.twin.close()

    def _measure(self, collective: Collective, call: Call, protocol: timing.Protocol) -> Iterator[Row]:
        """Measure all ways to make a call together, and yield their rows."""
        ways = [*self._ours(collective, call), *self._others(collective)]
        results = timing.measure(self.comm, collective, call, ordered, [candidate for _, candidate in ways], protocol)
        shared = {**facts(collective, call), "mode": self.job.mode}
        for (way, candidate), result in zip(ways, results, strict=True):
            self.wrong += result.wrong or 0
            row = {**shared, **way, "in_place": candidate.in_place}
            figures = self._figures(collective, shared["size"], result) if result.times_s else {}
            yield to_json(Measured(**row, **figures) if figures else Skipped(**row, skipped=result.skipped))

    def _ours(self, collective: Collective, call: Call) -> Iterator[tuple[Row, timing.Candidate]]:
        """Yield our algorithms in each form, each with what its row says of it."""
        size, wanted = collective.num_bytes(call), self.job.algorithms
        for row in self._here(collective):
            how: Any = {"placement": row.placement, "mode": self.job.mode}
            why = self.comm.explain(collective.name, size, call.dtype, call.redop, **how)
            chosen = why.algorithm == row.name
            if not ("all" in wanted or row.name in wanted or ("auto" in wanted and chosen)):
                continue
            way = {"algorithm": row.name, "ours": True, "placement": row.placement, "chosen": chosen}
            # The name of the plan's file but not its place.
            text = str(replace(why, source=Path(why.source).name)) if chosen else None
            way |= {"rule": why.rule if chosen else None, "why": text}
            plan = Plan.only({collective.name: row.name}, base=self.comm.plan)
            for in_place in forms(self.job, collective):
                yield way, timing.pinned(self.twin, collective, row, plan, in_place)

    def _others(self, collective: Collective) -> Iterator[tuple[Row, timing.Candidate]]:
        for peer in self.job.peers:
            in_forms = [peer.candidates(self.comm, collective, in_place) for in_place in forms(self.job, collective)]
            for label, *candidates in zip(peer.labels, *in_forms, strict=True):
                way = {"algorithm": label, "ours": False, "placement": "plain", "chosen": False}
                way |= {"rule": None, "why": None, "library": peer.title or peer.name}
                yield from ((way, candidate) for candidate in candidates)

    def _here(self, collective: Collective) -> list[Algorithm]:
        return [algorithm for algorithm in collective.algorithms if algorithm.backend == self.comm.backend]

    def _figures(self, collective: Collective, size: int, result: timing.Measurement) -> dict[str, Any]:
        rate = size / result.median_s / 1e9
        issued = result.issue_s if self.comm.device.type == "cuda" else []
        return {
            "time_us": percentiles_us(result),
            "iterations": result.iterations,
            "blocks": len(result.times_s),
            "algbw": round(rate, 6),
            "busbw": round(rate * collective.bus_factor(self.comm.size), 6),
            "wrong": result.wrong,
            "host_us": round(median(issued) * 1e6, 4) if issued else None,
        }


def _age_s() -> float:
    """Return for how long this process has run."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _match(plan: Plan) -> str:
    """Say how far the plan is of this machine: "here" where it was measured on one like it."""
    if plan.source.startswith("plans/") or not plan.fit.total:
        return "shipped"
    return "; ".join(plan.fit.differences) or "here"
