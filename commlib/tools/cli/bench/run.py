"""One run of `commlib bench` on one rank: join the others, measure, and let rank 0 print and write."""

from __future__ import annotations

from functools import partial

from commlib.tools.bench.job import Job, joined
from commlib.tools.bench.measure import Bench
from commlib.tools.report.run import UNREAD, Output, until_it_ends
from commlib.tools.timing import measure_limit


def main(job: Job, output: Output, command: str) -> int:
    """Measure until the end, an error or Ctrl-C, and report what was measured; return the exit code."""
    with joined(job) as comm:
        output.speaks = comm.rank == 0
        notes, limit = output.lacks(), measure_limit(comm)
        bench = Bench(comm, job, limit, command, notes)
        code = until_it_ends(partial(_measure, bench, output), output.finish)
        if code:
            return code  # nobody may come to end what the ranks share
        bench.close()
        return int(bench.wrong > 0) if output.wanted else UNREAD


def _measure(bench: Bench, output: Output) -> None:
    output.open(bench, len(bench.calls))
    for rows in bench.run(output.show):
        output.rows(rows)
