"""The document of a run: the rows of `commlib profile`, and how they were measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from commlib.tools.baselines.kernels.case import COPY, OURS
from commlib.tools.report.document import Kind, Report, Row
from commlib.tools.report.measured import percentiles_us, ratio_row
from commlib.tools.timing import Measurement

if TYPE_CHECKING:
    from commlib.tools.baselines.kernels.measure import Group, Line
    from commlib.tools.cli.profile.job import Job

KIND = Kind("commlib.profile", 1, "commlib profile", "commlib.tools.cli.profile")
FIGURES = ("time_us", "blocks", "calls", "gbps", "of_copy")  # null where nothing was measured


class ProfileReport(Report):
    """Collects the rows of a run and makes the document of what is there so far."""

    def __init__(self, job: Job, command: str) -> None:
        super().__init__(KIND, command, "" if job.settings.on_gpu else "cpu")
        self._job = job

    @property
    def wrong(self) -> int:
        """Return the wrong elements of all candidates."""
        return sum(row["wrong"] or 0 for row in self.rows)

    @property
    def failed(self) -> bool:
        """Whether a value is wrong, or ours could not be called."""
        return self.wrong > 0 or any(row["role"] == OURS and row["eager"] is None for row in self.rows)

    def add(self, group: Group) -> list[Row]:
        """Take the figures of one case and return its rows."""
        rows = [_row(group, line, self._job.settings.seed) for line in group.lines]
        self.rows += rows
        return rows

    def content(self) -> dict[str, Any]:
        """Return how it was measured, the rows, and what follows from them."""
        return {
            "config": self._job.config(),
            "copy": _copy_rate(self.rows),
            "rows": self.rows,
            "notes": self.notes,
            "out_of_bounds": {"count": self.wrong, "okay": not self.wrong},
        }


def _row(group: Group, line: Line, seed: int) -> Row:
    case = group.case
    return {
        "kernel": case.kernel,
        "variant": case.variant,
        "n": case.n,
        "dim": case.dim,
        "type": case.type,
        "pattern": case.pattern,
        "heat": case.heat,
        "sets": group.sets,
        "bytes": group.num_bytes,
        "candidate": line.candidate.label,
        "role": line.candidate.role,
        "skipped": line.skipped,
        "wrong": line.wrong,
        "mode": "graph" if group.replays else "eager",
        **(_figures(group, line.timed) if line.timed else dict.fromkeys(FIGURES)),
        "eager": _eager(group, line.eager),
        "versus": _versus(group, line, seed),
    }


def _figures(group: Group, timed: Measurement) -> Row:
    copies = (line.timed.median_s for line in group.lines if line.candidate.label == COPY and line.timed)
    return {
        "time_us": percentiles_us(timed),
        "blocks": len(timed.times_s),
        "calls": timed.iterations,
        "gbps": round(group.num_bytes / 1e9 / timed.median_s, 6),
        "of_copy": next((round(copy_s / timed.median_s, 6) for copy_s in copies), None),
    }


def _eager(group: Group, called: Measurement | None) -> Row | None:
    """Return what a call takes the host, which is all of it on the CPU, and until the device is done."""
    if called is None:
        return None
    host = round(median(called.issue_s) * 1e6, 4) if group.replays and called.issue_s else None
    return {"wall_us": percentiles_us(called), "host_us": host}


def _versus(group: Group, line: Line, seed: int) -> Row | None:
    """Compare ours with the best of the peers, anyone else with ours: times as long as ours it takes."""
    ours = group.ours()
    above = group.best_peer() if line is ours else line
    if ours is None or ours.timed is None or above is None or above.timed is None:
        return None
    ratio = ratio_row(above.timed.times_s, ours.timed.times_s, seed)
    return None if ratio is None else {"of": above.candidate.label, **ratio}


def _copy_rate(rows: Sequence[Row]) -> Row | None:
    """Return the best that torch's copy reached in this run, and of how many bytes."""
    copies = [row for row in rows if row["candidate"] == COPY and row["gbps"] and row["heat"] == "cold"]
    best = max(copies, key=lambda row: float(row["gbps"]), default=None)
    return {"gbps": best["gbps"], "bytes": best["bytes"]} if best else None
