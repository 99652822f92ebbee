"""Results of `commlib bench OP --phases`: document, table, timeline, and a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from commlib.communicator import Communicator
from commlib.counts import counted
from commlib.tools.bench.phases import GPU, HOST, TRACKS, Parts, Phases, Spans, Traced
from commlib.tools.bench.result import type_text
from commlib.tools.debug.trace import Event, named
from commlib.tools.report.chart import Bar, Panel
from commlib.tools.report.document import Document, Kind, Report, Row
from commlib.tools.report.figures import fitted, percent_text, size_text
from commlib.tools.report.formats import csv_text
from commlib.tools.report.schema import Number
from commlib.tools.report.table import Column
from commlib.tools.report.view import View, device, grouped, unfinished

TRACED = 8  # calls in a trace, from the usual one on, which is in the picture
SHORTEST = 1 / 500  # of the picture: shorter phases would not be seen there
LANES = 1000  # of a track in a trace: one for each block
PHASES = {  # in the order in which a call comes to them
    "python": "outside of native code",
    "native": "arguments are checked; the way back",
    "plan": "the algorithm is looked up",
    "launch": "the kernel is put on the stream",
    "start": "until what is ahead on the stream is over",
    "publish": "what peers read is written",
    "wait": "for peers",
    "reduce": "add",
    "copy": "what came is brought to its place",
    "idle": "blocks have not begun, or are done",
    "gap": "launch to start, end to who waits for it",
    "device": "the kernel, and the ways to it and back",
}


@dataclass(frozen=True)
class PhaseRow:
    """A phase of a rank, on average over the usual calls."""

    rank: int
    place: Literal["host", "gpu"]
    phase: str
    us: Number
    share: float  # of the rank's phases together


@dataclass(frozen=True)
class RankTimes:
    """How long a usual call takes a rank."""

    rank: int
    sum_us: float  # its phases, without what their stamps take
    plain_us: float  # a call without stamps
    stamped_us: float  # a call with them


@dataclass(frozen=True)
class PhasesDocument(Document):
    """A run of `commlib bench OP --phases`."""

    config: dict[str, Any]  # op, type, redop, root, size, placement, mode, ranks, backend …
    choice: dict[str, Any]  # algorithm, params, and why
    wrong: int | None
    ranks: list[RankTimes]
    timeline: list[dict[str, Any]]  # of one call: rank, lane, phase, start_us, us
    rows: list[PhaseRow]
    notes: list[str]


KIND = Kind("commlib.phases", 1, "commlib bench OP --phases", of=PhasesDocument)


class PhasesReport(Report):
    """Makes the document of one call."""

    def __init__(self, phases: Phases, command: str) -> None:
        super().__init__(KIND, command)
        self._phases = phases
        self._content: dict[str, Any] = {}
        self.events: list[Event] = []  # for a trace

    @property
    def failed(self) -> bool:
        return bool(self._content["wrong"])

    def measure(self, comm: Communicator) -> list[Row]:
        """Measure on all ranks, and return the rows."""
        why, made = self._phases.why, self._phases.run()
        parts = made.parts()
        times = {
            "rank": comm.rank,
            "sum_us": _us(sum(parts.values())),
            "plain_us": _us(made.usual_plain_ns()),
            "stamped_us": _us(fmean(call.call_ns for call in made.usual())),
        }
        each_ns = [call.call_ns for call in made.calls]
        ranks = comm.all_gather_object((parts, times, each_ns))
        at = _usual_call([of_rank for *_, of_rank in ranks])
        shown = comm.all_gather_object(made.calls[at : at + TRACED])
        self.rows = [row for rank, (of_rank, *_) in enumerate(ranks) for row in _rows(rank, of_rank)]
        self.events = [event for rank, calls in enumerate(shown) for event in _events(rank, calls)]
        self._content = {
            "config": self._config(len(each_ns)),
            "choice": {
                "algorithm": why.algorithm,
                "params": dict(why.params),
                "why": str(replace(why, source=Path(why.source).name)),
            },
            "wrong": made.wrong,
            "ranks": [of_rank for _, of_rank, _ in ranks],
            "timeline": list(_timeline([calls[0] for calls in shown])),
        }
        return self.rows

    def _config(self, calls: int) -> dict[str, Any]:
        job, call, collective = self._phases.job, self._phases.call, self._phases.collective
        return {
            "op": collective.name,
            "type": str(call.dtype).removeprefix("torch."),
            "redop": call.redop if collective.reduces else None,
            "root": call.root if collective.rooted else None,
            "size": collective.num_bytes(call),
            "placement": self._phases.placement,
            "in_place": job.places[0],
            "mode": job.mode,
            "ranks": call.size,
            "backend": self._phases.comm.backend,
            "calls": calls,
            "seconds": job.seconds,
        }

    def content(self) -> dict[str, Any]:
        return {**self._content, "rows": self.rows, "notes": self.notes}


def _rows(rank: int, parts: Parts) -> Iterator[Row]:
    whole = sum(parts.values())
    for (place, phase), ns in parts.items():
        yield {"rank": rank, "place": place, "phase": phase, "us": _us(ns), "share": round(ns / whole, 4)}


def _usual_call(ranks: Sequence[Sequence[float]]) -> int:
    """Return the number of a call that took its slowest rank no longer than most calls did."""
    slowest = [max(of_call) for of_call in zip(*ranks, strict=True)]
    return slowest.index(sorted(slowest)[3 * len(slowest) // 8])


def _us(ns: float) -> float:
    return round(ns * 1e-3, 4)


def _lanes(call: Traced) -> Iterator[tuple[int, str, Spans]]:
    """Yield number and name of each lane of a call, and its spans on the host's clock."""
    if call.host:
        yield 0, HOST, call.host
    for at, track in enumerate(TRACKS):
        for block, spans in enumerate(call.kernel.get(track, ())):
            yield 1 + at * LANES + block, f"{track[:-1]} {block}", [span.moved(call.shift_ns) for span in spans]


def _timeline(calls: Sequence[Traced]) -> Iterator[Row]:
    """Yield the phases of one call on each rank: on the host, of the first block, and of its sender."""
    names = {HOST: HOST, "block 0": GPU, "sender 0": "sender"}
    lanes = [
        (rank, names[name], of) for rank, call in enumerate(calls) for _, name, of in _lanes(call) if name in names
    ]
    if not lanes:
        return
    first = min(spans[0].start_ns for _, _, spans in lanes)
    last = max(spans[-1].end_ns for _, _, spans in lanes)
    for rank, lane, spans in lanes:
        for span in spans:
            if span.ns >= SHORTEST * (last - first):
                times = {"start_us": _us(span.start_ns - first), "us": _us(span.ns)}
                yield {"rank": rank, "lane": lane, "phase": span.phase, **times}


def _events(rank: int, calls: Sequence[Traced]) -> list[Event]:
    """Return the trace of some calls of a rank: it is a process, its host and each block of its kernels a thread."""
    lanes = [(number, *lane) for number, call in enumerate(calls) for lane in _lanes(call)]
    threads = sorted({(at, name) for _, at, name, _ in lanes})
    return [
        named("process_name", rank, 0, f"rank {rank}"),
        *(named("thread_name", rank, *thread) for thread in threads),
        *(
            {"name": span.phase, "cat": "phase", "ph": "X", "pid": rank, "tid": at, "args": {"call": number}}
            | {"ts": span.start_ns * 1e-3, "dur": span.ns * 1e-3}
            for number, at, _, spans in lanes
            for span in spans
        ),
    ]


class PhasesView(View):
    """A line for each phase, with the ranks side by side."""

    def columns(self) -> Sequence[Column]:
        ranks = [each["rank"] for each in self.document.get("ranks", ())]
        return [
            Column(" phase", lambda rows: f" {rows[0]['phase']}", 8, left=True),
            Column("where", lambda rows: rows[0]["place"], 5, left=True),
            Column("mean", lambda rows: fitted(_mean(rows, "us", len(ranks)), 7), 7, "(us)"),
            Column("%", lambda rows: percent_text(_mean(rows, "share", len(ranks))), 4),
            *(Column(f"rank {rank}", partial(_of, rank=rank), 7, "(us)", spare=1 + rank) for rank in ranks),
            Column("what", lambda rows: PHASES[rows[0]["phase"]], 40, left=True, spare=1 + len(ranks)),
        ]

    def opening(self) -> list[str]:
        config, machine, why = self.document["config"], self.document["fingerprint"], self.document["choice"]["why"]
        calls = "a replayed CUDA graph" if config["mode"] == "graph" else "eager calls"
        ranks = f"{counted(config['ranks'], 'rank')} on {config['backend']}"
        lines = [
            f"commlib {machine['commlib']} bench --phases: {ranks}, {machine.get('gpu') or machine['cpu']}",
            f"torch {machine['torch']}, Python {machine['python']}, Linux {machine['kernel']}",
            f"{config['calls']} of {calls}, the second quarter by their time; phases without what their stamps take",
            *why.splitlines(),
        ]
        return [f"# {line}" for line in lines]

    def closing(self) -> list[str]:
        """Say whether the phases add up, and whether the values are right."""
        names = "sum_us", "plain_us", "stamped_us"
        total, plain, stamped = (fmean(each[name] for each in self.document["ranks"]) for name in names)
        wrong = self.document["wrong"]
        lines = [
            f"phases add up to {fitted(total, 8)} us, calls without stamps take {fitted(plain, 8)} us "
            f"({(total / plain - 1) * 100:+.1f} %), with them {fitted(stamped, 8)} us",
            *self.document["notes"],
            f"Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        ]
        return ["#", *(f"# {line}" for line in lines), *unfinished(self.document)]

    def title(self, rows: Sequence[Row]) -> str:
        config = self.document["config"]
        parts = [config["op"], f"{size_text(config['size'])} {config['placement']}", type_text(config["type"])]
        parts += [config["redop"]] if config["redop"] else []
        parts += [f"root {config['root']}"] if config["root"] is not None else []
        return ", ".join([*parts, *(["CUDA graph"] if config["mode"] == "graph" else [])])

    def items(self, rows: Sequence[Row]) -> Sequence[list[Row]]:
        """Return the rows of each phase, in the order in which a call comes to them."""
        phases = grouped(rows, lambda row: (row["place"], row["phase"]))
        return sorted(phases, key=lambda of: (of[0]["place"] == GPU, list(PHASES).index(of[0]["phase"])))

    def csv(self) -> str:
        return csv_text(self.rows())

    def panels(self) -> list[list[Panel]]:
        """Return one call of all ranks over its time."""
        stretches = self.document["timeline"]
        bars = [Bar(f"rank {of['rank']} {of['lane']}", of["phase"], of["start_us"], of["us"]) for of in stretches]
        return [[Panel(f"{self.title(())} by {self.document['choice']['algorithm']}", bars=bars, xlabel="µs")]]

    def chart_title(self) -> str:
        return f"One {self.document['config']['op']}, {device(self.document)}"


def _mean(rows: Sequence[Mapping[str, Any]], key: str, ranks: int) -> float:
    return sum(float(row[key]) for row in rows) / ranks


def _of(rows: Sequence[Row], rank: int) -> str:
    return fitted(next((row["us"] for row in rows if row["rank"] == rank), None), 7)
