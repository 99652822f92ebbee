"""The document of a run: the rows of `commlib bench`, what follows from them, and how they were measured."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from commlib.bench.job import BEST
from commlib.bench.rows import KIND, measured, median_us
from commlib.collectives import COLLECTIVES
from commlib.peers import PROBE
from commlib.report.document import Report, Row
from commlib.report.measured import percentiles_us, ratio_row
from commlib.report.view import grouped
from commlib.timing import Limit, block_seconds, fit_latency_and_rate

if TYPE_CHECKING:
    from commlib.bench.measure import Bench, Group, Line
    from commlib.plan import Explanation

WAY = ("op", "type", "redop", "algorithm", "placement", "in_place", "mode")


class BenchReport(Report):
    """Collects the rows of a run and makes the document of what is there so far."""

    def __init__(self, bench: Bench, limit: Limit, command: str, notes: Sequence[str] = ()) -> None:
        super().__init__(KIND, command)
        self.wrong = 0
        self._bench, self._limit = bench, limit
        self.notes = [*notes, *bench.notes()]
        self._on_gpu = bench.comm.device.type == "cuda"
        self.config = _config(bench)

    def add(self, group: Group) -> list[Row]:
        """Take the figures of one call and return its rows."""
        rows = [row for line in group.lines for row in self._rows(group, line)]
        self.rows += rows
        self.wrong += sum(line.wrong() for line in group.lines)
        return rows

    def content(self) -> dict[str, Any]:
        """Return how it was measured, the rows, and what follows from them."""
        plan = self._bench.comm.plan
        return {
            "config": self.config,
            "plan": {"digest": plan.digest, "source": Path(plan.source).name},
            "limit": asdict(self._limit),
            "rows": self.rows,
            "fits": list(_fits(self.rows, self._bench.comm.size)),
            "notes": self.notes,
            "out_of_bounds": {"count": self.wrong, "okay": not self.wrong},
            "average_bus_bandwidth": _averages(self.rows),
        }

    def _rows(self, group: Group, line: Line) -> Iterator[Row]:
        call, why = group.call, group.why.get(line.placement) if line.chosen else None
        shared = {
            "op": group.collective.name,
            "size": group.num_bytes,
            "count": call.count,
            "type": str(call.dtype).removeprefix("torch."),
            "redop": call.redop if group.collective.reduces else None,
            "root": call.root if group.collective.rooted else None,
            "algorithm": line.label,
            "ours": line.ours,
            "placement": line.placement,
            "chosen": line.chosen,
            "rule": why.rule if why else None,
            "why": _reason(why) if why else None,
            "mode": self._bench.job.mode,
        }
        for place, result in line.found.items():
            figures = self._figures(group, line, place) if result.times_s else {"skipped": result.skipped}
            yield {**shared, "in_place": place, **figures}

    def _figures(self, group: Group, line: Line, in_place: bool) -> Row:
        result = line.found[in_place]
        algorithm = group.num_bytes / result.median_s / 1e9
        bus = algorithm * group.bus_factor
        return {
            "time_us": percentiles_us(result),
            "iterations": result.iterations,
            "blocks": len(result.times_s),
            "algbw": round(algorithm, 6),
            "busbw": round(bus, 6),
            "of_limit": round(bus / self._limit.busbw, 6) if self._limit.busbw and group.num_bytes else None,
            "wrong": result.wrong,
            "host_us": round(median(result.issue_s) * 1e6, 4) if self._on_gpu and result.issue_s else None,
            "speedup": self._speedup(group, line, in_place),
        }

    def _speedup(self, group: Group, line: Line, in_place: bool) -> Row | None:
        """Compare with the baseline in the same form."""
        rival = self._rival(group, in_place)
        if rival is None or rival is line:
            return None
        times = rival.found[in_place].times_s, line.found[in_place].times_s
        ratio = ratio_row(*times, self._bench.job.protocol.seed)
        return None if ratio is None else {"over": rival.label, **ratio}

    def _rival(self, group: Group, in_place: bool) -> Line | None:
        """Return the baseline; as the best, the fastest of the peers whose values are right."""
        label = self.config["baseline"]
        if label != BEST:
            return next((line for line in group.lines if line.label == label), None)
        peers = [line for line in group.lines if not line.ours and line.found[in_place].wrong == 0]
        timed = [line for line in peers if line.found[in_place].times_s]
        return min(timed, key=lambda line: line.found[in_place].median_s, default=None)


def _reason(why: Explanation) -> str:
    """Say why, with the name of the plan's file but not its place."""
    return str(replace(why, source=Path(why.source).name))


def _config(bench: Bench) -> dict[str, Any]:
    job, comm = bench.job, bench.comm
    protocol = job.protocol
    return {
        "ranks": comm.size,
        "backend": comm.backend,
        "mode": job.mode,
        "cores_per_rank": len(os.sched_getaffinity(0)),
        "sizes": list(job.sizes),
        "block_us": block_seconds(comm) * 1e6,
        "blocks": list(protocol.blocks),
        "iterations": protocol.iterations,
        "warmup": protocol.warmup,
        "buffers": protocol.buffers,
        "seed": protocol.seed,
        "check": protocol.check,
        "seconds": job.seconds,
        "peers": [peer.name for peer in job.peers],
        "params": {name: list(values) for name, values in job.params.items()},
        "baseline": bench.baseline,
    }


def _fits(rows: Sequence[Row], ranks: int) -> Iterator[Row]:
    """Fit each way to make a call over its sizes."""
    for series in grouped(measured(rows), lambda row: tuple(row[key] for key in WAY)):
        times = [median_us(row) * 1e-6 for row in series]
        fit = fit_latency_and_rate([row["size"] for row in series], times) if min(times) > 0 else None
        if fit is None:
            continue
        factor = COLLECTIVES[series[0]["op"]].bus_factor(ranks)
        yield {
            **{key: series[0][key] for key in WAY},
            "latency_us": round(fit.latency_s * 1e6, 4),
            "gbps": round(factor / fit.byte_s / 1e9, 6) if fit.byte_s and factor else None,
            "half_bytes": round(fit.latency_s / fit.byte_s) if fit.byte_s else None,
            "error": round(fit.error, 6),
        }


def _averages(rows: Sequence[Row]) -> dict[str, Any]:
    """Average bus bandwidth as nccl-tests does: of the plan's choices on plain tensors, and of each peer."""
    moving = [row for row in measured(rows) if row["size"]]
    ours = [row["busbw"] for row in moving if row["chosen"] and row["placement"] == "plain"]
    others = (row for row in moving if not row["ours"] and not row["algorithm"].startswith(PROBE))
    theirs = grouped(others, lambda row: row["algorithm"])
    return {
        "plan": round(mean(ours), 6) if ours else None,
        "peers": {of[0]["algorithm"]: round(mean(row["busbw"] for row in of), 6) for of in theirs},
    }
