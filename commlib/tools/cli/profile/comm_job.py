"""From the options of `commlib profile comm` to a job of `commlib bench` with one call."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

from commlib.collectives import COLLECTIVES, REDOPS
from commlib.plan import Plan
from commlib.tools.bench.job import Job, series
from commlib.tools.cli.options import check_files, known_name, read_dtypes
from commlib.tools.report import files
from commlib.tools.timing import Protocol

AUTO = "auto"


@dataclass(frozen=True)
class CommJob:
    """One call, the same on every rank."""

    bench: Job
    symmetric: bool  # its tensors lie in symmetric memory
    trace: Path | None


def read_job(op: str, ranks: int | None, options: dict[str, Any]) -> CommJob:
    """Turn options into a job, or raise what is wrong with them."""
    known_name(op, COLLECTIVES, "collective")
    known_name(options["redop"], REDOPS, "reduction")
    check_files(options["output"], options["plot"], "--json")
    if options["trace"] is not None and (why := files.unwritable(options["trace"])):
        raise click.UsageError(f"--trace {options['trace']}: {why}")
    if options["results"] is not None:
        raise click.UsageError("--results is for --analyze SIZES")
    collective, algorithm = COLLECTIVES[op], options["algorithm"]
    known_name(algorithm, [AUTO, *(row.name for row in collective.algorithms)], f"algorithm of {op}")
    if algorithm != AUTO:
        options["symmetric"] |= collective.algorithm(algorithm).placement == "symmetric"
    if options["graph"] and (options["backend"] == "shm" or not torch.cuda.is_available()):
        raise click.UsageError("--graph needs GPUs; leave it out")
    if ranks is not None and options["root"] >= ranks:
        raise click.UsageError(f"--root {options['root']} is no rank; the last one is {ranks - 1}")
    plan = None if options["plan"] is None else Path(options["plan"])
    if plan is not None:
        Plan.load(plan)
    in_place = options["in_place"] or not collective.out_of_place
    job = Job(
        ops=(op,),
        sizes=(options["num_bytes"],),
        dtypes=read_dtypes(options["dtype"])[:1],
        redops=(options["redop"],),
        algorithms=(algorithm,),
        params={},
        peers=(),
        baseline=None,
        places=(in_place,),
        protocol=Protocol(graph=options["graph"]),
        plan=plan,
        **{name: options[name] for name in ("root", "backend", "seconds")},
    )
    if not any(series(job)):
        form = "in-place form" if in_place else "such reduction of this element type"
        raise click.UsageError(f"{op} has no {form}")
    return CommJob(job, options["symmetric"], options["trace"])
