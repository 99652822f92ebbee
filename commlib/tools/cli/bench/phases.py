"""`commlib bench OP --phases`: where the time of one call goes, on each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import click
from click.core import ParameterSource

from commlib.collectives import COLLECTIVES
from commlib.counts import counted
from commlib.tools.bench.job import Job, facts, joined
from commlib.tools.bench.phases import DEVICE, GAP, GPU, IDLE, PHASES, Phases
from commlib.tools.bench.result import title
from commlib.tools.report.document import Document, Kind, Report, Row
from commlib.tools.report.formats import Column, csv_text, fitted, percent_text, size_text
from commlib.tools.report.run import Output
from commlib.tools.report.view import View, grouped
from commlib.tools.timing import Protocol

AUTO = "auto"
SIZE, SECONDS = 64 << 10, 5.0  # where they are not named
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


def one_call(ctx: click.Context, job: Job, options: dict[str, Any]) -> Job:
    """Return the job with the one call that is looked at, or raise what is wrong with it."""
    for option in ("plot", "graph"):
        if options[option]:
            raise click.UsageError(f"--phases looks at eager calls and draws nothing; leave --{option} out")
    named = any(options[name] is not None for name in ("sizes", "min_bytes", "max_bytes"))
    sizes = job.sizes if named else (SIZE,)
    algorithms = (AUTO,) if job.algorithms == ("all",) else job.algorithms
    parts = {"OP": job.ops, "--sizes": sizes, "--dtype": job.dtypes, "--redop": job.redops, "--algorithms": algorithms}
    for option, values in parts.items():
        if len(values) > 1:
            raise click.UsageError(f"--phases looks at one call, and {option} names {len(values)}; name one")
    return replace(
        job,
        sizes=sizes,
        algorithms=algorithms,
        places=(job.places == (True,) or not COLLECTIVES[job.ops[0]].out_of_place,),
        seconds=SECONDS if ctx.get_parameter_source("seconds") == ParameterSource.DEFAULT else job.seconds,
        protocol=Protocol(),
        peers=(),
        auto=False,
    )


def main(job: Job, output: Output, command: str) -> int:
    """Measure, and print what was measured; return the exit code."""
    (algorithm,), (op,) = job.algorithms, job.ops
    row = None if algorithm == AUTO else COLLECTIVES[op].algorithm(algorithm)
    symmetric = row is not None and row.placement == "symmetric"
    with joined(job) as comm:
        report = PhasesReport(Phases(comm, job, symmetric), command)
        output.speaks = comm.rank == 0
        output.open(report, 0)
        output.rows(report.rows)
        output.finish("")
    return int(bool(report.wrong))


class PhasesReport(Report):
    """The document of one call, which all ranks measure; each has it."""

    def __init__(self, phases: Phases, command: str) -> None:
        super().__init__(KIND, command)
        comm, job, why = phases.comm, phases.job, phases.why
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
            **facts(phases.collective, phases.call),
            "placement": phases.placement,
            "in_place": job.places[0],
            "mode": job.mode,
            "ranks": comm.size,
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


class PhasesView(View):
    """A line for each phase, with the ranks side by side."""

    def columns(self) -> list[Column]:
        ranks = [each["rank"] for each in self.document["ranks"]]
        return [
            Column(" phase", lambda rows: f" {rows[0]['phase']}", 8, left=True),
            Column("where", lambda rows: rows[0]["place"], 5, left=True),
            Column("mean", lambda rows: fitted(_mean(rows, "us", len(ranks)), 7), 7, "(us)"),
            Column("%", lambda rows: percent_text(_mean(rows, "share", len(ranks))), 4),
            *(Column(f"rank {rank}", partial(_of, rank=rank), 7, "(us)", spare=1 + rank) for rank in ranks),
        ]

    def title(self, rows: Sequence[Row]) -> str:
        config = self.document["config"]
        return f"{title(config)}, {size_text(config['size'])} {config['placement']}"

    def items(self, rows: Sequence[Row]) -> list[list[Row]]:
        phases = grouped(rows, lambda row: (row["place"], row["phase"]))
        return sorted(phases, key=lambda of: (of[0]["place"] == GPU, ORDER.index(of[0]["phase"])))

    def opening(self) -> list[str]:
        config, machine = self.document["config"], self.document["fingerprint"]
        ranks = f"{counted(config['ranks'], 'rank')} on {config['backend']}"
        lines = [
            f"commlib {machine['commlib']} bench --phases: {ranks}, {machine.get('gpu') or machine['cpu']}",
            f"torch {machine['torch']}, Python {machine['python']}, Linux {machine['kernel']}",
            f"{config['calls']} calls, the second quarter by their time; phases without what their stamps take",
            *self.document["choice"]["why"].splitlines(),
        ]
        return [f"# {line}" for line in lines]

    def closing(self) -> list[str]:
        """Say whether the phases add up, and whether the values are right."""
        names = "sum_us", "plain_us", "stamped_us"
        total, plain, stamped = (fmean(each[name] for each in self.document["ranks"]) for name in names)
        wrong = self.document["wrong"]
        return [
            "#",
            f"# phases add up to {fitted(total, 8)} us, calls with stamps take {fitted(stamped, 8)} us, "
            f"back to back without them {fitted(plain, 8)} us",
            f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        ]

    def csv(self) -> str:
        return csv_text(self.document["rows"])


def _mean(rows: Sequence[Row], key: str, ranks: int) -> float:
    return sum(float(row[key]) for row in rows) / ranks


def _of(rows: Sequence[Row], rank: int) -> str:
    return fitted(next((row["us"] for row in rows if row["rank"] == rank), None), 7)
