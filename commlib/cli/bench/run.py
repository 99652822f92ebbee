"""One run of `commlib bench` on one rank: join the others, measure, and let rank 0 print and write."""

from __future__ import annotations

from functools import partial

import click

import commlib
from commlib import env
from commlib.bench.job import Job, arena_bytes
from commlib.bench.measure import Bench
from commlib.report.run import Output, until_it_ends
from commlib.timing import measure_limit


def main(job: Job, output: Output, command: str) -> int:
    """Measure until the end, an error or Ctrl-C, and report what was measured; return the exit code."""
    room = None if env.MAX_BYTES.is_set() else max(env.MAX_BYTES.default, arena_bytes(job))
    with commlib.init(backend=job.backend, max_bytes=room, plan=job.plan or "auto") as comm:
        if not 0 <= job.root < comm.size:
            raise click.UsageError(f"--root {job.root} is not one of {comm.size} ranks")
        if job.protocol.graph and comm.device.type != "cuda":
            raise click.UsageError(f"--graph needs GPUs; the ranks use {comm.device} (backend {comm.backend})")
        output.speaks = comm.rank == 0
        notes, limit = output.lacks(), measure_limit(comm)
        bench = Bench(comm, job, limit, command, notes)
        code = until_it_ends(partial(_measure, bench, output), output.finish)
        if code:
            return code  # nobody may come to end what the ranks share
        bench.close()
        return int(bench.wrong > 0)


def _measure(bench: Bench, output: Output) -> None:
    output.open(bench, len(bench.calls))
    for rows in bench.run(output.show):
        output.rows(rows)
