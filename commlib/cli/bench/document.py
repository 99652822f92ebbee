"""The document of a run: what `commlib bench` writes as JSON, and all that is shown is rendered from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from commlib.cli.bench.file import SCHEMA, VERSION
from commlib.collectives import COLLECTIVES
from commlib.timing import (
    Limit,
    block_seconds,
    environment,
    fingerprint,
    fit_latency_and_rate,
    ratio_of_medians,
)

if TYPE_CHECKING:
    from commlib.cli.bench.job import Bench, Group, Line
    from commlib.plan import Explanation

Row = dict[str, Any]
PERCENTILES = (0, 10, 50, 90, 100)
LEAST_BLOCKS = 3  # of fewer, no interval can be had
SERIES = ("op", "type", "redop", "algorithm", "placement", "in_place", "mode")


class Report:
    """Collects the rows of a run and makes the document of what is there so far."""

    def __init__(self, bench: Bench, limit: Limit, command: str, notes: Sequence[str] = ()) -> None:
        self.rows: list[Row] = []
        self.wrong = 0
        self._bench, self._limit, self._notes, self._command = bench, limit, [*notes, *bench.notes()], command
        self._created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.config = _config(bench)

    def add(self, group: Group) -> list[Row]:
        """Take the figures of one call and return its rows."""
        rows = [row for line in group.lines for row in self._rows(group, line)]
        self.rows += rows
        self.wrong += sum(line.wrong() for line in group.lines)
        return rows

    def document(self, ended: str = "", complete: bool = True) -> dict[str, Any]:
        """Return everything; `ended` says why it is not complete."""
        plan = self._bench.comm.plan
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "command": self._command,
            "created": self._created,
            "complete": complete and not ended,
            "ended": ended,
            "fingerprint": fingerprint(),
            "environment": environment(),
            "config": self.config,
            "plan": {"digest": plan.digest, "source": Path(plan.source).name},
            "limit": asdict(self._limit),
            "rows": self.rows,
            "fits": list(_fits(self.rows, self._bench.comm.size)),
            "notes": self._notes,
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
        limited = self._limit.busbw is not None and group.num_bytes > 0
        return {
            "time_us": {f"p{p}": round(result.percentile_s(p) * 1e6, 4) for p in PERCENTILES},
            "iterations": result.iterations,
            "blocks": len(result.times_s),
            "algbw": round(algorithm, 6),
            "busbw": round(bus, 6),
            "of_limit": round(bus / self._limit.busbw, 6) if limited and self._limit.busbw else None,
            "wrong": result.wrong,
            "speedup": self._speedup(group, line, in_place),
        }

    def _speedup(self, group: Group, line: Line, in_place: bool) -> Row | None:
        """Compare with the baseline in the same form."""
        label = self.config["baseline"]
        rivals = [other for other in group.lines if other.label == label and other is not line]
        times = [other.found[in_place].times_s for other in rivals]
        own = line.found[in_place].times_s
        if not times or min(len(times[0]), len(own)) < LEAST_BLOCKS:
            return None
        found = ratio_of_medians(times[0], own, self._bench.job.protocol.seed)
        return {"over": label, **{name: round(value, 4) for name, value in asdict(found).items()}}


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
        "peers": list(job.peers),
        "baseline": bench.baseline,
    }


def _fits(rows: Sequence[Row], ranks: int) -> Iterator[Row]:
    """Fit each way to make a call over its sizes."""
    series: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if "skipped" not in row:
            series.setdefault(tuple(row[key] for key in SERIES), []).append(row)
    for key, of_key in series.items():
        sizes, times = [row["size"] for row in of_key], [row["time_us"]["p50"] * 1e-6 for row in of_key]
        fit = fit_latency_and_rate(sizes, times) if min(times) > 0 else None
        if fit is None:
            continue
        factor = COLLECTIVES[of_key[0]["op"]].bus_factor(ranks)
        yield {
            **dict(zip(SERIES, key, strict=True)),
            "latency_us": round(fit.latency_s * 1e6, 4),
            "gbps": round(factor / fit.byte_s / 1e9, 6) if fit.byte_s and factor else None,
            "half_bytes": round(fit.latency_s / fit.byte_s) if fit.byte_s else None,
            "error": round(fit.error, 6),
        }


def _averages(rows: Sequence[Row]) -> dict[str, Any]:
    """Average bus bandwidth as nccl-tests does: of the plan's choices on plain tensors, and of each peer."""
    moving = [row for row in rows if "skipped" not in row and row["size"]]
    ours = [row["busbw"] for row in moving if row["chosen"] and row["placement"] == "plain"]
    theirs: dict[str, list[float]] = {}
    for row in moving:
        if not row["ours"]:
            theirs.setdefault(row["algorithm"], []).append(row["busbw"])
    return {
        "plan": round(mean(ours), 6) if ours else None,
        "peers": {label: round(mean(values), 6) for label, values in theirs.items()},
    }
