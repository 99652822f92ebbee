"""Results of `commlib bench OP --phases`: document and table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from commlib.counts import counted
from commlib.tools.bench.phases import DEVICE, GAP, GPU, IDLE, PHASES, Phases
from commlib.tools.report.document import Document, Kind, Report, Row
from commlib.tools.report.figures import fitted, percent_text, size_text
from commlib.tools.report.table import Column, Table, fold
from commlib.tools.report.view import grouped

ORDER = [*PHASES, IDLE, GAP, DEVICE]  # in which a call comes to its phases


@dataclass(frozen=True)
class PhaseRow:
    """A phase of a rank, on average over the usual calls."""

    rank: int
    place: Literal["host", "gpu"]
    phase: str
    us: float
    share: float  # of the rank's phases together


@dataclass(frozen=True)
class PhasesDocument(Document):
    """A run of `commlib bench OP --phases`."""

    config: dict[str, Any]  # op, type, redop, root, size, placement, mode, ranks, backend …
    choice: dict[str, Any]  # algorithm, params, and why
    wrong: int | None
    ranks: list[dict[str, Any]]  # µs of a usual call: sum_us of its phases, plain_us without stamps, stamped_us with
    rows: list[PhaseRow]
    notes: list[str]


KIND = Kind("commlib.phases", 1, "commlib bench OP --phases", of=PhasesDocument)


class PhasesReport(Report):
    """The document of one call, which all ranks measure; each has it."""

    def __init__(self, phases: Phases, command: str) -> None:
        super().__init__(KIND, command)
        comm, job, call, collective, why = phases.comm, phases.job, phases.call, phases.collective, phases.why
        times = phases.run()
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
        self._config = {
            "op": collective.name,
            "type": str(call.dtype).removeprefix("torch."),
            "redop": call.redop if collective.reduces else None,
            "root": call.root if collective.rooted else None,
            "size": collective.num_bytes(call),
            "placement": phases.placement,
            "in_place": job.places[0],
            "mode": job.mode,
            "ranks": call.size,
            "backend": comm.backend,
            "calls": times.calls,
            "seconds": job.seconds,
        }
        text = str(replace(why, source=Path(why.source).name))
        self._choice = {"algorithm": why.algorithm, "params": dict(why.params), "why": text}
        self._ranks, self.wrong = [of_rank for of_rank, _ in ranks], times.wrong

    def content(self) -> dict[str, Any]:
        parts = {"config": self._config, "choice": self._choice, "wrong": self.wrong, "ranks": self._ranks}
        return {**parts, **super().content()}


def _us(ns: float) -> float:
    return round(ns * 1e-3, 4)


def lines(document: dict[str, Any], width: int) -> list[str]:
    """Return a line for each phase, with the ranks side by side, and what stands above and below."""
    ranks = [each["rank"] for each in document["ranks"]]
    columns = [
        Column(" phase", lambda rows: f" {rows[0]['phase']}", 8, left=True),
        Column("where", lambda rows: rows[0]["place"], 5, left=True),
        Column("mean", lambda rows: fitted(_mean(rows, "us", len(ranks)), 7), 7, "(us)"),
        Column("%", lambda rows: percent_text(_mean(rows, "share", len(ranks))), 4),
        *(Column(f"rank {rank}", partial(_of, rank=rank), 7, "(us)", spare=1 + rank) for rank in ranks),
    ]
    table, phases = Table(columns, width), grouped(document["rows"], lambda row: (row["place"], row["phase"]))
    ordered = sorted(phases, key=lambda of: (of[0]["place"] == GPU, ORDER.index(of[0]["phase"])))
    head = [*table.head(_title(document["config"])), *map(table.line, ordered)]
    return [*fold(_opening(document), width), *head, "#", *fold(_closing(document), width)]


def _opening(document: dict[str, Any]) -> list[str]:
    config, machine, why = document["config"], document["fingerprint"], document["choice"]["why"]
    ranks = f"{counted(config['ranks'], 'rank')} on {config['backend']}"
    return [
        f"# commlib {machine['commlib']} bench --phases: {ranks}, {machine.get('gpu') or machine['cpu']}",
        f"# torch {machine['torch']}, Python {machine['python']}, Linux {machine['kernel']}",
        f"# {config['calls']} calls, the second quarter by their time; phases without what their stamps take",
        *(f"# {line}" for line in why.splitlines()),
    ]


def _closing(document: dict[str, Any]) -> list[str]:
    """Say whether the phases add up, and whether the values are right."""
    names = "sum_us", "plain_us", "stamped_us"
    total, plain, stamped = (fmean(each[name] for each in document["ranks"]) for name in names)
    wrong = document["wrong"]
    return [
        f"# phases add up to {fitted(total, 8)} us, calls with stamps take {fitted(stamped, 8)} us, "
        f"back to back without them {fitted(plain, 8)} us",
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
    ]


def _title(config: dict[str, Any]) -> str:
    parts = [config["op"], f"{size_text(config['size'])} {config['placement']}", config["type"]]
    parts += [config["redop"]] if config["redop"] else []
    parts += [f"root {config['root']}"] if config["root"] is not None else []
    return ", ".join(parts)


def _mean(rows: Sequence[Row], key: str, ranks: int) -> float:
    return sum(float(row[key]) for row in rows) / ranks


def _of(rows: Sequence[Row], rank: int) -> str:
    return fitted(next((row["us"] for row in rows if row["rank"] == rank), None), 7)
