"""Results of `commlib bench OP --phases`: document and table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from commlib.communicator import Communicator
from commlib.counts import counted
from commlib.tools.bench.phases import DEVICE, GAP, GPU, IDLE, PHASES, Phases
from commlib.tools.bench.result import type_text
from commlib.tools.report.document import Document, Kind, Report, Row
from commlib.tools.report.figures import fitted, percent_text, size_text
from commlib.tools.report.formats import csv_text
from commlib.tools.report.schema import Number
from commlib.tools.report.table import Column
from commlib.tools.report.view import View, grouped, unfinished

ORDER = [*PHASES, IDLE, GAP, DEVICE]  # in which a call comes to its phases


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
    plain_us: float  # a call without stamps, as tables of `commlib bench` have it
    stamped_us: float  # a call with them
    blocks: int | None = None  # of the kernel; 0 without a kernel of ours


@dataclass(frozen=True)
class PhasesDocument(Document):
    """A run of `commlib bench OP --phases`."""

    config: dict[str, Any]  # op, type, redop, root, size, placement, mode, ranks, backend …
    choice: dict[str, Any]  # algorithm, params, and why
    wrong: int | None
    ranks: list[RankTimes]
    rows: list[PhaseRow]
    notes: list[str]


KIND = Kind("commlib.phases", 1, "commlib bench OP --phases", of=PhasesDocument)


class PhasesReport(Report):
    """Makes the document of one call."""

    def __init__(self, phases: Phases, command: str) -> None:
        super().__init__(KIND, command)
        self._phases = phases
        self._content: dict[str, Any] = {}

    @property
    def failed(self) -> bool:
        return bool(self._content["wrong"])

    def measure(self, comm: Communicator) -> list[Row]:
        """Measure on all ranks, and return the rows."""
        why, times = self._phases.why, self._phases.run()
        of_rank = {
            "rank": comm.rank,
            "sum_us": _us(sum(times.parts.values())),
            "plain_us": _us(times.plain_ns),
            "stamped_us": _us(times.usual_ns),
            "blocks": times.blocks,
        }
        ranks = comm.all_gather_object((of_rank, times.parts))
        self.rows = [
            {"rank": rank, "place": place, "phase": phase, "us": _us(ns), "share": round(ns / sum(parts.values()), 4)}
            for rank, (_, parts) in enumerate(ranks)
            for (place, phase), ns in parts.items()
        ]
        self._content = {
            "config": self._config(times.calls),
            "choice": {
                "algorithm": why.algorithm,
                "params": dict(why.params),
                "why": str(replace(why, source=Path(why.source).name)),
            },
            "wrong": times.wrong,
            "ranks": [of_rank for of_rank, _ in ranks],
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


def _us(ns: float) -> float:
    return round(ns * 1e-3, 4)


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
            f"phases add up to {fitted(total, 8)} us, calls with stamps take {fitted(stamped, 8)} us, "
            f"back to back without them {fitted(plain, 8)} us",
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
        return sorted(phases, key=lambda of: (of[0]["place"] == GPU, ORDER.index(of[0]["phase"])))

    def csv(self) -> str:
        return csv_text(self.rows())


def _mean(rows: Sequence[Mapping[str, Any]], key: str, ranks: int) -> float:
    return sum(float(row[key]) for row in rows) / ranks


def _of(rows: Sequence[Row], rank: int) -> str:
    return fitted(next((row["us"] for row in rows if row["rank"] == rank), None), 7)
