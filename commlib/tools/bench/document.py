"""What the document of `commlib bench` says beside its rows: how they were measured, and what follows from them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from commlib.collectives import COLLECTIVES
from commlib.tools.bench.rows import AGREE, measured, median_us
from commlib.tools.report.document import Row
from commlib.tools.report.view import grouped
from commlib.tools.timing import block_seconds, fit_latency_and_rate

if TYPE_CHECKING:
    from commlib.communicator import Communicator
    from commlib.tools.bench.job import Job

PROTOCOL = ("blocks", "iterations", "warmup", "buffers", "seed", "check")
WAY = ("op", "type", "redop", "algorithm", "placement", "in_place", "mode")


def config_of(job: Job, comm: Communicator, baseline: str | None) -> dict[str, Any]:
    """Return what was asked for, and of whom."""
    return {
        "ranks": comm.size,
        "backend": comm.backend,
        "mode": job.mode,
        "cores_per_rank": len(os.sched_getaffinity(0)),
        "sizes": job.sizes,
        **({"shapes": list(dict.fromkeys(shape.text for shape in job.shapes))} if job.shapes else {}),
        **({"window": job.window.messages, "pairs": job.window.pairs} if job.window else {}),
        **({"overlap": True} if job.overlap else {}),
        "block_us": block_seconds(comm) * 1e6,
        **{
            name: getattr(job.protocol, name) for name in ("blocks", "iterations", "warmup", "buffers", "seed", "check")
        },
        "seconds": job.seconds,
        "peers": [peer.name for peer in job.peers],
        "params": job.params,
        "baseline": baseline,
        "agree": AGREE,
        **({"percentiles": True} if job.percentiles else {}),
    }


def fits(rows: Sequence[Row], ranks: int) -> Iterator[Row]:
    """Fit each way to make a call over its sizes."""
    plain = [row for row in measured(rows) if "window" not in row]  # the size of a window's row is one message's
    for series in grouped(plain, lambda row: tuple(row[key] for key in WAY)):
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
