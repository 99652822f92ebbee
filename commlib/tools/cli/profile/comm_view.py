"""How a document of `commlib profile comm` is shown: a line for each phase, a column for each rank; a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from commlib.counts import counted
from commlib.tools.bench.result import type_text
from commlib.tools.report.chart import Bar, Panel
from commlib.tools.report.document import Row
from commlib.tools.report.figures import fitted, percent_text, size_text
from commlib.tools.report.formats import csv_text
from commlib.tools.report.table import Column
from commlib.tools.report.view import View, device, grouped, unfinished

DOES = {
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


class CommView(View):
    """A line for each phase, with the ranks side by side."""

    def columns(self) -> Sequence[Column]:
        """Return the columns of a phase's rows, one of each rank."""
        ranks = [each["rank"] for each in self.document["ranks"]] if "ranks" in self.document else []
        return [
            Column(" phase", lambda rows: f" {rows[0]['phase']}", 8, left=True),
            Column("where", lambda rows: rows[0]["place"], 5, left=True),
            Column("mean", lambda rows: fitted(_mean(rows, "us", len(ranks)), 7), 7, "(us)"),
            Column("%", lambda rows: percent_text(_mean(rows, "share", len(ranks))), 4),
            *(Column(f"rank {rank}", partial(_of, rank=rank), 7, "(us)", spare=1 + rank) for rank in ranks),
            Column("what", lambda rows: DOES[rows[0]["phase"]], 40, left=True, spare=1 + len(ranks)),
        ]

    def opening(self) -> list[str]:
        """Say what is measured, and where."""
        config, machine, choice = self.document["config"], self.document["fingerprint"], self.document["choice"]
        where = f"{_ranks(config)}, {machine.get('gpu') or machine['cpu']}"
        calls = "a replayed CUDA graph" if config["mode"] == "graph" else "eager calls"
        first, *why = choice["why"].splitlines()
        lines = [
            f"commlib {machine['commlib']} profile comm: {where}",
            f"torch {machine['torch']}, Python {machine['python']}, Linux {machine['kernel']}",
            f"{config['calls']} of {calls}, the second quarter by their time; phases without what their stamps take",
            first,
            *why,
        ]
        return [f"# {line}" for line in lines]

    def closing(self) -> list[str]:
        """Say whether the phases add up, and whether the values are right."""
        names = "sum_us", "alone_us", "stamped_us"
        total, alone, stamped = (fmean(each[name] for each in self.document["ranks"]) for name in names)
        wrong = self.document["wrong"]
        lines = [
            f"phases add up to {fitted(total, 8)} us, calls without stamps take {fitted(alone, 8)} us "
            f"({(total / alone - 1) * 100:+.1f} %), with them {fitted(stamped, 8)} us",
            *self.document["notes"],
            f"Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        ]
        return ["#", *(f"# {line}" for line in lines), *unfinished(self.document)]

    def title(self, rows: Sequence[Row]) -> str:
        """Name the call."""
        config = self.document["config"]
        words = [config["op"], f"{size_text(config['size'])} {config['placement']}", type_text(config["type"])]
        words += [config["redop"]] if config["redop"] else []
        words += [f"root {config['root']}"] if config["root"] is not None else []
        return ", ".join([*words, *(["CUDA graph"] if config["mode"] == "graph" else [])])

    def items(self, rows: Sequence[Row]) -> Sequence[list[Row]]:
        """Return the rows of each phase, in the order in which a call comes to them."""
        order = list(DOES)
        return sorted(grouped(rows, lambda row: (row["place"], row["phase"])), key=lambda of: _place(of[0], order))

    def csv(self) -> str:
        """Return a line for each phase of each rank."""
        return csv_text(self.rows())

    def panels(self) -> list[list[Panel]]:
        """Return one call of all ranks over its time."""
        found = self.document["timeline"]
        bars = [Bar(f"rank {of['rank']} {of['lane']}", of["phase"], of["start_us"], of["us"]) for of in found]
        return [[Panel(f"{self.title(())} by {self.document['choice']['algorithm']}", bars=bars, xlabel="µs")]]

    def chart_title(self) -> str:
        """Name call and machine."""
        return f"One {self.document['config']['op']}, {device(self.document)}"


def _ranks(config: Row) -> str:
    return f"{counted(config['ranks'], 'rank')} on {config['backend']}"


def _place(row: Row, order: Sequence[str]) -> tuple[bool, int]:
    return row["place"] == "gpu", order.index(row["phase"])


def _mean(rows: Sequence[Row], key: str, ranks: int) -> float:
    return sum(float(row[key]) for row in rows) / ranks


def _of(rows: Sequence[Row], rank: int) -> str:
    return fitted(next((row["us"] for row in rows if row["rank"] == rank), None), 7)
