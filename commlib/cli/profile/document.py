"""The document of a run: what `commlib profile` writes as JSON, and all that is shown is rendered from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from statistics import median
from typing import TYPE_CHECKING, Any

from commlib.cli.profile.case import COPY, OURS, PEER
from commlib.timing import Measurement, environment, fingerprint, ratio_of_medians

if TYPE_CHECKING:
    from commlib.cli.profile.job import Job
    from commlib.cli.profile.measure import Group, Line

Row = dict[str, Any]
SCHEMA, VERSION = "commlib.profile", 1
PERCENTILES = (0, 10, 50, 90, 100)
LEAST_BLOCKS = 3  # of fewer, no interval can be had
SERIES = ("kernel", "variant", "dim", "type", "pattern", "heat")


class Report:
    """Collects the rows of a run and makes the document of what is there so far."""

    def __init__(self, job: Job, command: str) -> None:
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self._job, self._command = job, command
        self._created = datetime.now(timezone.utc).isoformat(timespec="seconds")

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

    def document(self, ended: str = "", complete: bool = True) -> dict[str, Any]:
        """Return everything; `ended` says why it is not complete."""
        on_gpu = self._job.settings.device.type == "cuda"
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "command": self._command,
            "created": self._created,
            "complete": complete and not ended,
            "ended": ended,
            "fingerprint": fingerprint("" if on_gpu else "cpu"),
            "environment": environment(),
            "config": self._job.config(),
            "copy": _copy_rate(self.rows),
            "rows": self.rows,
            "notes": self.notes,
            "out_of_bounds": {"count": self.wrong, "okay": not self.wrong},
        }


def timed(line: Line, graphs: bool) -> Measurement | None:
    """Return what the figure of a line is: of replays where there are any of the case, else of calls."""
    found = line.graph if graphs else line.eager
    return found if found is not None and found.times_s else None


def _row(group: Group, line: Line, seed: int) -> Row:
    case, candidate = group.case, line.candidate
    graphs = any(other.graph is not None for other in group.lines)
    of_line = timed(line, graphs)
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
        "candidate": candidate.label,
        "role": candidate.role,
        "skipped": line.skipped or (line.graph.skipped if line.graph is not None else ""),
        "wrong": line.wrong,
        "mode": "graph" if graphs else "eager",
        "time_us": _percentiles(of_line.times_s) if of_line else None,
        "blocks": len(of_line.times_s) if of_line else None,
        "calls": of_line.iterations if of_line else None,
        "gbps": _rate(group, of_line),
        "of_copy": _of_copy(group, of_line, graphs),
        "eager": _eager(line.eager, group),
        "versus": _versus(group, line, graphs, seed),
    }


def _rate(group: Group, found: Measurement | None) -> float | None:
    return round(group.num_bytes / found.median_s / 1e9, 6) if found and found.median_s else None


def _of_copy(group: Group, found: Measurement | None, graphs: bool) -> float | None:
    copies = (timed(line, graphs) for line in group.lines if line.candidate.label == COPY)
    copy = next((measured for measured in copies if measured), None)
    return round(copy.median_s / found.median_s, 6) if copy and found and found.median_s else None


def _eager(found: Measurement | None, group: Group) -> Row | None:
    """Return what a call takes the host, which is all of it on the CPU, and until the device is done."""
    if found is None or not found.times_s:
        return None
    on_gpu = any(line.graph is not None for line in group.lines)
    host = round(median(found.issue_s) * 1e6, 4) if on_gpu and found.issue_s else None
    return {"wall_us": _percentiles(found.times_s), "host_us": host}


def _percentiles(times_s: Sequence[float]) -> dict[str, float]:
    ranked = sorted(times_s)
    return {f"p{p}": round(ranked[round(p / 100 * (len(ranked) - 1))] * 1e6, 4) for p in PERCENTILES}


def _versus(group: Group, line: Line, graphs: bool, seed: int) -> Row | None:
    """Compare ours with the best of the peers, anyone else with ours: times as long `over` takes."""
    ours = next((other for other in group.lines if other.candidate.role == OURS and timed(other, graphs)), None)
    peers = [
        other for other in group.lines if other.candidate.role == PEER and timed(other, graphs) and not other.wrong
    ]
    of_line = timed(line, graphs)
    if ours is None or of_line is None or (line is ours and not peers):
        return None
    above = min(peers, key=lambda peer: _median(peer, graphs)) if line is ours else line
    of_above, of_ours = timed(above, graphs), timed(ours, graphs)
    assert of_above is not None and of_ours is not None
    if min(len(of_above.times_s), len(of_ours.times_s)) < LEAST_BLOCKS:
        return None
    found = ratio_of_medians(of_above.times_s, of_ours.times_s, seed)
    return {"of": above.candidate.label, **{name: round(value, 4) for name, value in asdict(found).items()}}


def _median(line: Line, graphs: bool) -> float:
    found = timed(line, graphs)
    return found.median_s if found else float("inf")


def _copy_rate(rows: Sequence[Row]) -> Row | None:
    """Return the best that torch's copy reached in this run, and of how many bytes."""
    copies = [row for row in rows if row["candidate"] == COPY and row["gbps"] and row["heat"] == "cold"]
    best = max(copies, key=lambda row: float(row["gbps"]), default=None)
    return {"gbps": best["gbps"], "bytes": best["bytes"]} if best else None
