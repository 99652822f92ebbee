"""`commlib test`: check every algorithm of this installation on live ranks; needs no checkout."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from commlib.counts import counted
from commlib.tools.cli.options import Result, known_name, ranks_option, result_options
from commlib.tools.cli.run import check_ranks, command_line
from commlib.tools.report.document import Document, Kind, Report, Row

BUFFER_BYTES = 128 << 20  # what a rank allocates to check a collective
KIND = Kind("commlib.test", 1, "commlib test --json", of=Document)


@click.command()
@ranks_option(None, "Number of ranks; without it 2, 3 and 4.")
@click.option("--quick", is_flag=True, help="Two ranks, few sizes and types: a few seconds.")
@click.option("--op", "only", metavar="OP", help="Check one collective only.")
@click.option("--backend", "of", help="nccl, shm or torch; without it, all.")
@result_options
@click.pass_context
def test(ctx: click.Context, /, ranks: int | None, quick: bool, only: str | None, of: str | None, **where: Any) -> None:
    """Check every algorithm of this installation on live ranks: values, types, reductions, ragged sizes."""
    import torch

    from commlib.backends import BACKENDS
    from commlib.collectives import COLLECTIVES

    sizes = [ranks] if ranks is not None else [2] if quick else [2, 3, 4]
    names = [known_name(only, COLLECTIVES, "collective")] if only is not None else list(COLLECTIVES)
    backends = [known_name(of, BACKENDS, "backend")] if of else BACKENDS
    if ranks is not None:
        check_ranks(ranks, "auto", lambda ranks: BUFFER_BYTES)
    start, report, result = time.perf_counter(), Report(KIND, command_line(ctx)), Result(**where)
    for size, backend in itertools.product(sizes, backends):
        if backend == "nccl" and not of and (gpus := torch.cuda.device_count()) < size:
            note = f"{counted(size, 'rank'):<7}  nccl is left out: it needs a GPU for each rank, and there are {gpus}"
            report.notes.append(note)
            result.say(note)
            continue
        for row in _check(size, backend, names, quick):
            report.rows.append(row)
            state = click.style("FAIL", fg="red") if row["wrong"] else click.style("ok", fg="green")
            result.say(f"{counted(size, 'rank'):<7}  {row['op']:<16} {row['algorithm']:<22} {state}")
            if row["wrong"]:
                result.say(f"    {row['wrong']}")
    spent, failed = time.perf_counter() - start, sum(bool(row["wrong"]) for row in report.rows)
    cores = counted(os.cpu_count() or 1, "core")
    result.say(f"{len(report.rows) - failed} passed, {failed} failed in {spent:.1f} s on {cores}")
    result.finish(report.document(), report.rows)
    ctx.exit(1 if failed else 0)


def _check(size: int, backend: str, names: Sequence[str], quick: bool) -> Iterator[Row]:
    """Run every algorithm of one backend on one set of ranks; yield a row with what is wrong with each, or ""."""
    from commlib.collectives import algorithm_names
    from commlib.errors import CommError
    from commlib.tools.testing import RankError, Ranks
    from commlib.tools.testing.conformance import EVERY_SIZE, EVERY_TYPE, QUICK, check_algorithm

    pairs = [(name, algorithm) for name in names for algorithm in algorithm_names(backend)[name]]
    scopes = (QUICK,) if quick else (EVERY_TYPE, EVERY_SIZE)

    def fault(ranks: Ranks, name: str, algorithm: str) -> str:
        runs = (enumerate(ranks.run(check_algorithm, name, algorithm, scope)) for scope in scopes)
        try:
            return next((f"rank {rank}: {verdict.wrong}" for run in runs for rank, verdict in run if verdict.wrong), "")
        except (CommError, RuntimeError) as error:
            return str(error)

    try:
        with Ranks(size, backend=backend) as ranks:
            for name, algorithm in pairs:
                wrong = fault(ranks, name, algorithm)
                yield {"ranks": size, "backend": backend, "op": name, "algorithm": algorithm, "wrong": wrong}
    except RankError as error:  # of ranks that cannot start
        raise error.cause from None
