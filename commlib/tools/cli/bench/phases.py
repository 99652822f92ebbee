"""`commlib bench OP --phases`: where the time of one call goes, on each rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from commlib.collectives import COLLECTIVES
from commlib.tools.bench.job import Job, joined
from commlib.tools.bench.phases import Phases
from commlib.tools.bench.phases_report import PhasesReport, lines
from commlib.tools.cli.options import Result
from commlib.tools.report.view import terminal_columns
from commlib.tools.timing import Protocol

AUTO = "auto"
SIZE, SECONDS = 64 << 10, 5.0  # where they are not named


def one_call(ctx: click.Context, job: Job, options: dict[str, Any]) -> Job:
    """Return the job with the one call that is looked at, or raise what is wrong with it."""
    for option in ("plot", "graph"):
        if options[option]:
            raise click.UsageError(f"--phases looks at eager calls and draws nothing; leave --{option} out")
    if options["form"] not in (None, "table", "json"):
        raise click.UsageError("--phases prints a table, or --json; -o FILE writes .json, .csv or .md")
    named = {name for name in ctx.params if ctx.get_parameter_source(name) != ParameterSource.DEFAULT}
    sizes = job.sizes if named & {"sizes", "min_bytes", "max_bytes"} else (SIZE,)
    algorithms = (AUTO,) if job.algorithms == ("all",) else job.algorithms
    parts = {"OP": job.ops, "--sizes": sizes, "--dtype": job.dtypes, "--redop": job.redops, "--algorithms": algorithms}
    for option, values in parts.items():
        if len(values) > 1:
            raise click.UsageError(f"--phases looks at one call, and {option} names {len(values)}; name one")
    return replace(
        job,
        sizes=sizes,
        algorithms=algorithms,
        places=(job.places == (True,) or not COLLECTIVES[job.ops[0]].out_of_place,),
        seconds=job.seconds if "seconds" in named else SECONDS,
        protocol=Protocol(),
        peers=(),
        auto=False,
    )


def main(job: Job, options: dict[str, Any], command: str) -> int:
    """Measure, and print what was measured; return the exit code."""
    (algorithm,), (op,) = job.algorithms, job.ops
    row = None if algorithm == AUTO else COLLECTIVES[op].algorithm(algorithm)
    symmetric = row is not None and row.placement == "symmetric"
    with joined(job) as comm:
        report = PhasesReport(Phases(comm, job, symmetric), command)
        if comm.rank == 0:
            result, document = Result(options["form"] == "json", options["output"]), report.document()
            result.say("\n".join(lines(document, terminal_columns())))
            result.finish(document, report.rows)
    return int(bool(report.wrong))
