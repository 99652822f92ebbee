"""`commlib profile radix`: calls of the radix cache, a line for each operation and who does it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from commlib.tools.baselines.kernels.radix import OPERATIONS, OURS, Operation, operations
from commlib.tools.cli.profile.run import one_thread
from commlib.tools.report.document import Kind, Report, Row
from commlib.tools.report.figures import fitted, ratio_text
from commlib.tools.report.run import Output, until_it_ends
from commlib.tools.report.table import Column
from commlib.tools.report.view import View
from commlib.tools.timing import Measurement, Protocol, measure_alone

KIND = Kind("commlib.radix_profile", 1, "commlib profile radix", "commlib.tools.cli.profile", "radix_schema.json")


class RadixReport(Report):
    """Collects the rows of a run and makes the document of what is there so far."""

    def __init__(self, leaves: int, command: str) -> None:
        super().__init__(KIND, command, "cpu")
        self.leaves = leaves

    def add(self, operation: Operation, found: Sequence[Measurement]) -> list[Row]:
        """Take the figures of one operation, ours first, and return its rows."""
        rows = [_row(operation, each, found[0].median_s) for each in found]
        self.rows += rows
        return rows

    def content(self) -> dict[str, Any]:
        """Return the size of the tree that is evicted from, and the rows."""
        return {"leaves": self.leaves, "rows": self.rows}


class RadixView(View):
    """One table."""

    def columns(self) -> Sequence[Column]:
        """Return the columns of a row."""
        return [
            Column(" operation", lambda row: f" {row['operation']}", 15, left=True),
            Column("tokens", lambda row: str(row["tokens"]), 7),
            Column("detail", lambda row: str(row["detail"]), 16, left=True, spare=2),
            Column(
                "candidate", lambda row: row["candidate"] + ("*" if row["candidate"] == OURS else ""), 15, left=True
            ),
            Column("time", lambda row: fitted(row["median_us"], 8), 8, "(us)"),
            Column("rate", lambda row: fitted(row["gbps"], 6), 6, "GB/s", spare=1),
            Column("ratio", lambda row: "-" if row["to_ours"] is None else ratio_text(row["to_ours"]), 7, "to ours"),
        ]

    def title(self, rows: Sequence[Row]) -> str:
        """Say what is measured, and where."""
        machine = self.document["fingerprint"]
        return f"commlib {machine['commlib']} profile radix on {machine['cpu']}, one thread, called from Python"


def main(report: RadixReport, output: Output, seconds: float, seed: int) -> int:
    """Measure until the end or Ctrl-C, and report what was measured; return the exit code."""
    with one_thread():
        return until_it_ends(partial(_measure, report, output, seconds / OPERATIONS, seed), output.finish)


def _measure(report: RadixReport, output: Output, budget_s: float, seed: int) -> None:
    output.open(report, OPERATIONS)
    for done, operation in enumerate(operations(report.leaves)):
        output.show(done, operation.name)
        output.rows(report.add(operation, measured(operation, budget_s, seed)))


def measured(operation: Operation, budget_s: float, seed: int) -> list[Measurement]:
    """Time an operation by all who do it."""
    protocol = Protocol(blocks=(5, 25), budget_s=budget_s, iterations=operation.iterations, seed=seed, check=False)
    calls = {label: [run] for label, run in operation.calls.items()}
    return measure_alone(torch.device("cpu"), calls, protocol, operation.name)


def _row(operation: Operation, found: Measurement, ours_s: float) -> Row:
    return {
        "operation": operation.name,
        "tokens": operation.tokens,
        "detail": operation.detail,
        "candidate": found.label,
        "median_us": round(found.median_s * 1e6, 4),
        "least_us": round(min(found.times_s) * 1e6, 4),
        "blocks": len(found.times_s),
        "calls": found.iterations,
        "gbps": round(operation.num_bytes / found.median_s / 1e9, 3) if operation.num_bytes else None,
        "to_ours": None if found.label == OURS else round(found.median_s / ours_s, 3),
    }
