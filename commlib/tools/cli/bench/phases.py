"""`commlib bench OP --phases`: where the time of one call goes, on each rank."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commlib.tools.cli.options import FILE, POSITIVE, check_files, known_name, picture, read_bytes, read_dtypes
from commlib.tools.cli.ranks import Words, started
from commlib.tools.report import files
from commlib.tools.report.run import Output, until_it_ends

if TYPE_CHECKING:
    from commlib.communicator import Communicator
    from commlib.tools.bench.job import Job
    from commlib.tools.bench.phases_report import PhasesReport

AUTO = "auto"


@click.command(cls=Words)
@click.argument("op", default="all_reduce")
@click.option("--phases", is_flag=True, expose_value=False, hidden=True)
@click.option("-n", "--ranks", type=click.IntRange(1), help="Start N ranks here; without it, join the launcher's.")
@click.option("--sizes", "--bytes", "num_bytes", callback=read_bytes, default="64K", help="Size of the call.")
@click.option("-d", "--dtype", default="float32", help="Element type (bf16, half … too).")
@click.option("--redop", default="sum", help="Reduction, if the operation reduces.")
@click.option("-r", "--root", type=click.IntRange(0), default=0, help="Root of rooted collectives.")
@click.option("--algorithms", "--algorithm", "algorithm", default=AUTO, help="Algorithm; auto: the plan's choice.")
@click.option("--symmetric", is_flag=True, help="Tensors in symmetric memory, as of comm.empty().")
@click.option(
    "--in-place", "place", type=click.Choice(["out", "in"]), default="out", help="in: the result replaces the input."
)
@click.option("--graph", is_flag=True, help="Look at replays of a CUDA graph instead of eager calls.")
@click.option("--time", "seconds", default=5.0, type=POSITIVE, help="Seconds to measure, about.")
@click.option("--backend", type=click.Choice([AUTO, "nccl", "shm"]), default=AUTO, help="Our backend.")
@click.option("--bind", type=click.Choice([AUTO, "core", "none"]), default=AUTO, help="Pinning of ranks, with -n.")
@click.option("--plan", type=FILE, help="Use this plan file instead of the plan in force.")
@click.option("--trace", type=FILE, help="Also write the phases of some calls to FILE, for Perfetto: JSON.")
@click.option("-o", "--output", type=FILE, help="Also write to FILE: JSON, or .csv, .md by its suffix.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
@click.option("--plot", **picture("bench-phases.png", "the phases of one call on all ranks"))
@click.pass_context
def phases(ctx: click.Context, /, op: str, ranks: int | None, bind: str, **options: Any) -> None:
    """Show where the time of one call of OP goes: Python, native code, launch, and the phases of its kernel.

    `commlib plan explain OP` says which algorithm the plan chooses and what it is expected to take.
    """
    from commlib.tools.bench.job import buffer_bytes

    job = read_job(op, ranks, options)
    code = started(ctx, ranks, bind, partial(buffer_bytes, job))
    ctx.exit(_main(job, options, shlex.join(["commlib", "bench", *ctx.meta["words"]])) if code is None else code)


def read_job(op: str, ranks: int | None, options: dict[str, Any]) -> Job:
    """Turn options into a job of `commlib bench` with one call, or raise what is wrong with them."""
    import torch

    from commlib.collectives import COLLECTIVES, REDOPS
    from commlib.plan import Plan
    from commlib.tools.bench.job import Job, series
    from commlib.tools.timing import Protocol

    known_name(op, COLLECTIVES, "collective")
    known_name(options["redop"], REDOPS, "reduction")
    check_files(options["output"], options["plot"])
    trace: Path | None = options["trace"]
    if trace is not None and (why := files.unwritable(trace)):
        raise click.UsageError(f"--trace {trace}: {why}")
    collective, algorithm = COLLECTIVES[op], options["algorithm"]
    known_name(algorithm, [AUTO, *(row.name for row in collective.algorithms)], f"algorithm of {op}")
    if algorithm != AUTO:
        options["symmetric"] |= collective.algorithm(algorithm).placement == "symmetric"
    if options["graph"] and (options["backend"] == "shm" or not torch.cuda.is_available()):
        raise click.UsageError("--graph needs GPUs; leave it out")
    if ranks is not None and options["root"] >= ranks:
        raise click.UsageError(f"--root {options['root']} is no rank; the last one is {ranks - 1}")
    if options["plan"] is not None:
        Plan.load(options["plan"])
    in_place = options["place"] == "in" or not collective.out_of_place
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
        **{name: options[name] for name in ("root", "backend", "seconds", "plan")},
    )
    if not any(series(job)):
        form = "in-place form" if in_place else "such reduction of this element type"
        raise click.UsageError(f"{op} has no {form}")
    return job


def _main(job: Job, options: dict[str, Any], command: str) -> int:
    """Measure until the end, an error or Ctrl-C, and report what was measured; return the exit code."""
    from commlib.tools.bench.job import joined
    from commlib.tools.bench.phases import Phases
    from commlib.tools.bench.phases_report import PhasesReport, PhasesView
    from commlib.tools.debug.trace import trace_text

    output = Output(PhasesView, "json" if options["as_json"] else "table", options["output"], options["plot"])
    with joined(job) as comm:
        output.speaks = comm.rank == 0
        report = PhasesReport(Phases(comm, job, options["symmetric"]), command)
        code = until_it_ends(partial(_measure, comm, report, output), output.finish)
        if not code and options["trace"] is not None and comm.rank == 0:
            files.write(options["trace"], trace_text(report.events))
    return code or int(report.failed)


def _measure(comm: Communicator, report: PhasesReport, output: Output) -> None:
    report.notes = output.lacks()
    rows = report.measure(comm)
    output.open(report, 1)
    output.rows(rows)
