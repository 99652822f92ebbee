"""`commlib profile attention`: the document of a run, and the run."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from commlib.tools.baselines.kernels.attention import TUNE, AttentionCase
from commlib.tools.baselines.kernels.case import FLOOR, OURS
from commlib.tools.baselines.kernels.measure import Group, Line, measure_case
from commlib.tools.cli.profile.attention_job import AttentionJob
from commlib.tools.cli.profile.run import one_thread
from commlib.tools.report.document import Kind, Report, Row
from commlib.tools.report.measured import percentiles_us, ratio_row
from commlib.tools.report.run import Output, until_it_ends

KIND = Kind(
    "commlib.attention_profile", 1, "commlib profile attention", "commlib.tools.cli.profile", "attention_schema.json"
)


class AttentionReport(Report):
    """Collects the rows of a run and makes the document of what is there so far."""

    def __init__(self, job: AttentionJob, command: str) -> None:
        super().__init__(KIND, command, "" if job.settings.on_gpu else "cpu")
        self._job = job

    @property
    def failed(self) -> bool:
        """Whether a value is too far off, or ours could not be called."""
        return any(row["wrong"] or (row["role"] == OURS and row["skipped"]) for row in self.rows)

    def add(self, group: Group) -> list[Row]:
        """Take the figures of one case and return its rows; compiled in other ways, the fastest first."""
        rows = [_row(group, line, self._job.settings.seed) for line in group.lines]
        if self._job.cases[0].beside == TUNE:
            rows.sort(key=lambda row: row["time_us"]["p50"] if row["time_us"] else float("inf"))
        self.rows += rows
        return rows

    def content(self) -> dict[str, Any]:
        """Return how it was measured, and the rows."""
        return {"config": self._job.config(), "rows": self.rows, "notes": self.notes}


def _row(group: Group, line: Line, seed: int) -> Row:
    case, timed = group.case, line.timed
    assert isinstance(case, AttentionCase)
    floors = [each.timed.median_s for each in group.lines if each.candidate.role == FLOOR and each.timed]
    return {
        "phase": case.phase,
        "batch": case.n,
        "length": case.length,
        "heads": case.heads,
        "kv_heads": case.kv_heads,
        "dim": case.dim,
        "page_size": case.page_size,
        "type": case.type,
        "cache": str(case.kept_as).removeprefix("torch."),
        "ragged": case.ragged,
        "bytes": group.num_bytes,
        "flops": case.flops(),
        "candidate": line.candidate.label,
        "role": line.candidate.role,
        "skipped": line.skipped,
        "wrong": line.wrong,
        "error": None if line.error is None or line.error == float("inf") else float(f"{line.error:.3g}"),
        "mode": "graph" if group.replays else "eager",
        "sets": group.sets,
        "time_us": percentiles_us(timed) if timed else None,
        "blocks": len(timed.times_s) if timed else None,
        "gbps": round(group.num_bytes / 1e9 / timed.median_s, 3) if timed else None,
        "tflops": round(case.flops() / 1e12 / timed.median_s, 4) if timed else None,
        "of_ceiling": round(min(floors) / timed.median_s, 4) if timed and floors else None,
        "host_us": _host(group, line),
        "versus": _versus(group, line, seed),
    }


def _host(group: Group, line: Line) -> float | None:
    """Return what an eager call takes the host; on the CPU all of it is the host's."""
    if not group.replays or line.eager is None or not line.eager.issue_s:
        return None
    return round(sorted(line.eager.issue_s)[len(line.eager.issue_s) // 2] * 1e6, 3)


def _versus(group: Group, line: Line, seed: int) -> Row | None:
    """Compare ours with the best of the peers, anyone else with ours: times as long as ours it takes."""
    ours = group.ours()
    above = group.best_peer() if line is ours else line
    if ours is None or ours.timed is None or above is None or above.timed is None:
        return None
    ratio = ratio_row(above.timed.times_s, ours.timed.times_s, seed)
    return None if ratio is None else {"of": above.candidate.label, **ratio}


def main(job: AttentionJob, output: Output, command: str) -> int:
    """Measure until the end, an error or Ctrl-C, and report what was measured; return the exit code."""
    report = AttentionReport(job, command)
    if job.settings.on_gpu:
        torch.cuda.set_device(job.settings.device)
    with one_thread(not job.settings.on_gpu):
        code = until_it_ends(partial(_measure, job, report, output), output.finish)
    return code or int(report.failed)


def _measure(job: AttentionJob, report: AttentionReport, output: Output) -> None:
    output.open(report, len(job.cases))
    for done, case in enumerate(job.cases):
        output.show(done, str(case))
        group = measure_case(case, job.settings, job.seconds / len(job.cases))
        report.notes = job.settings.compiler.notes()
        output.rows(report.add(group))
