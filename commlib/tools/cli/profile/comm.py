"""`commlib profile comm`: the document of a run, and the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from commlib.communicator import Communicator
from commlib.tools.bench.job import joined
from commlib.tools.bench.phases import GPU, HOST, TRACKS, Parts, Phases, Spans, Traced
from commlib.tools.cli.profile.comm_job import CommJob
from commlib.tools.cli.profile.comm_trace import events_of
from commlib.tools.debug.trace import Event, trace_text
from commlib.tools.report.document import Kind, Report, Row
from commlib.tools.report.files import write
from commlib.tools.report.run import Output, until_it_ends

KIND = Kind("commlib.comm_profile", 1, "commlib profile comm", "commlib.tools.cli.profile", "comm_schema.json")
TRACED = 8  # calls in a trace, from the usual one on, which is in the picture
SHORTEST = 1 / 500  # of the picture: shorter phases would not be seen there


class OfRank(NamedTuple):
    """What a rank tells the others of its calls."""

    parts: Parts
    call_ns: float  # of the usual ones, with stamps
    alone_ns: float  # without
    each_ns: list[float]


class CommReport(Report):
    """Makes the document of one call."""

    def __init__(self, job: CommJob, command: str) -> None:
        super().__init__(KIND, command)
        self._job = job
        self._content: dict[str, Any] = {}
        self.events: list[Event] = []  # for a trace

    @property
    def failed(self) -> bool:
        """Whether a value is wrong."""
        return bool(self._content["wrong"])

    def measure(self, comm: Communicator) -> list[Row]:
        """Measure on all ranks, and return the rows."""
        phases = Phases(comm, self._job.bench, self._job.symmetric)
        found = phases.run()
        usual_ns = fmean(call.call_ns for call in found.usual())
        told = OfRank(found.parts(), usual_ns, found.usual_alone_ns(), [call.call_ns for call in found.calls])
        ranks = comm.all_gather_object(told)
        at = _usual_call(ranks)
        shown = comm.all_gather_object(found.calls[at : at + TRACED])
        self.rows = [row for rank, of in enumerate(ranks) for row in _rows(rank, of.parts)]
        self.events = [event for rank, calls in enumerate(shown) for event in events_of(rank, calls)]
        self._content = {
            "config": self._config(phases, len(told.each_ns)),
            "choice": {
                "algorithm": phases.why.algorithm,
                "params": dict(phases.why.params),
                "why": str(replace(phases.why, source=Path(phases.why.source).name)),
            },
            "wrong": found.wrong,
            "ranks": [
                {
                    "rank": rank,
                    "sum_us": _us(sum(of.parts.values())),
                    "alone_us": _us(of.alone_ns),
                    "stamped_us": _us(of.call_ns),
                }
                for rank, of in enumerate(ranks)
            ],
            "timeline": list(_timeline([calls[0] for calls in shown])),
        }
        return self.rows

    def _config(self, phases: Phases, calls: int) -> dict[str, Any]:
        job, call, comm = self._job.bench, phases.call, phases.comm
        return {
            "op": phases.collective.name,
            "type": str(call.dtype).removeprefix("torch."),
            "redop": call.redop if phases.collective.reduces else None,
            "root": call.root if phases.collective.rooted else None,
            "size": phases.collective.num_bytes(call),
            "placement": phases.placement,
            "in_place": job.places[0],
            "mode": job.mode,
            "ranks": comm.size,
            "backend": comm.backend,
            "calls": calls,
            "seconds": job.seconds,
        }

    def content(self) -> dict[str, Any]:
        """Return which call it is, how long it took, its phases, and when they were."""
        return {**self._content, "rows": self.rows, "notes": self.notes}


def _rows(rank: int, parts: Parts) -> Iterator[Row]:
    whole = sum(parts.values())
    for (place, phase), ns in parts.items():
        yield {"rank": rank, "place": place, "phase": phase, "us": _us(ns), "share": round(ns / whole, 4)}


def _usual_call(ranks: Sequence[OfRank]) -> int:
    """Return the number of a call that took its slowest rank no longer than most calls did."""
    slowest = [max(of_call) for of_call in zip(*(of.each_ns for of in ranks), strict=True)]
    return slowest.index(sorted(slowest)[3 * len(slowest) // 8])


def _timeline(calls: Sequence[Traced]) -> Iterator[Row]:
    """Yield the phases of one call on each rank: on the host, of the first block, and of its sender."""
    lanes: list[tuple[int, str, Spans]] = []
    for rank, call in enumerate(calls):
        lanes += [(rank, HOST, call.host)] if call.host else []
        of_kernel = {name: call.kernel.get(track) for name, track in zip((GPU, "sender"), TRACKS, strict=True)}
        lanes += [(rank, lane, [s.moved(call.shift_ns) for s in of[0]]) for lane, of in of_kernel.items() if of]
    if not lanes:
        return
    first = min(spans[0].start_ns for _, _, spans in lanes)
    last = max(spans[-1].end_ns for _, _, spans in lanes)
    for rank, lane, spans in lanes:
        for span in spans:
            if span.ns >= SHORTEST * (last - first):
                yield {
                    "rank": rank,
                    "lane": lane,
                    "phase": span.phase,
                    "start_us": _us(span.start_ns - first),
                    "us": _us(span.ns),
                }


def _us(ns: float) -> float:
    return round(ns * 1e-3, 4)


def main(job: CommJob, output: Output, command: str) -> int:
    """Measure until the end, an error or Ctrl-C, and report what was measured; return the exit code."""
    report = CommReport(job, command)
    with joined(job.bench) as comm:
        output.speaks = comm.rank == 0
        code = until_it_ends(partial(_measure, comm, report, output), output.finish)
        if not code and job.trace is not None and comm.rank == 0:
            write(job.trace, trace_text(report.events))
    return code or int(report.failed)


def _measure(comm: Communicator, report: CommReport, output: Output) -> None:
    report.notes = output.lacks()
    rows = report.measure(comm)
    output.open(report, 1)
    output.rows(rows)
