"""`commlib test`: check every algorithm of this installation on live ranks; needs no checkout."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from commlib.cli.options import known_name

if TYPE_CHECKING:
    from commlib.testing import Ranks


BUFFER_BYTES = 128 << 20  # what a rank allocates to check a collective


@click.command()
@click.option("-n", "--ranks", "ranks", type=click.IntRange(1), help="Number of ranks; without it 2, 3 and 4.")
@click.option("--quick", is_flag=True, help="Two ranks, few sizes and types: a few seconds.")
@click.option("--op", "only", metavar="NAME", help="Check one collective only.")
@click.pass_context
def test(ctx: click.Context, ranks: int | None, quick: bool, only: str | None) -> None:
    """Check every algorithm of this installation on live ranks: values, types, reductions, ragged sizes."""
    from commlib import capacity
    from commlib.collectives import COLLECTIVES

    sizes = [ranks] if ranks is not None else [2] if quick else [2, 3, 4]
    names = [known_name(only, COLLECTIVES, "collective")] if only is not None else list(COLLECTIVES)
    if ranks is not None:
        capacity.check(ranks, "auto", lambda ranks: BUFFER_BYTES)
    start = time.perf_counter()
    problems = [
        problem
        for size in sizes
        for backend in _backends(names, size)
        for problem in _check_backend(size, backend, names, quick)
    ]
    spent, failed = time.perf_counter() - start, sum(map(bool, problems))
    click.echo(f"{len(problems) - failed} passed, {failed} failed in {spent:.1f} s on {os.cpu_count()} cores")
    ctx.exit(1 if failed else 0)


def _backends(names: list[str], size: int) -> list[str]:
    """Every backend that can run here; one that cannot says so."""
    import torch

    from commlib.collectives import COLLECTIVES

    there = sorted({algorithm.backend for name in names for algorithm in COLLECTIVES[name].algorithms})
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if "nccl" in there and gpus < size:
        click.echo(f"{size} ranks  nccl is left out: it needs a GPU for each rank, and there are {gpus}")
        there.remove("nccl")
    return there


def _check_backend(size: int, backend: str, names: list[str], quick: bool) -> Iterator[str]:
    """Run every algorithm of one backend on one set of ranks; yield what is wrong with each, or ''."""
    from commlib.collectives import algorithm_names
    from commlib.testing import Ranks

    rows = [(name, algorithm) for name in names for algorithm in algorithm_names(backend)[name]]
    with Ranks(size, backend=backend) as ranks:
        for name, algorithm in rows:
            problem = _check(ranks, name, algorithm, quick)
            state = click.style("FAIL", fg="red") if problem else click.style("ok", fg="green")
            click.echo(f"{size} ranks  {name:<16} {algorithm:<18} {state}")
            if problem:
                click.echo(f"    {problem}")
            yield problem


def _check(ranks: Ranks, name: str, algorithm: str, quick: bool) -> str:
    """Return the first thing that is wrong with one algorithm, or ''."""
    from commlib.errors import CommError
    from commlib.testing.conformance import EVERY_SIZE, EVERY_TYPE, QUICK, check_algorithm

    try:
        for scope in (QUICK,) if quick else (EVERY_TYPE, EVERY_SIZE):
            for rank, verdict in enumerate(ranks.run(check_algorithm, name, algorithm, scope)):
                if verdict.wrong:
                    return f"rank {rank}: {verdict.wrong}"
    except (CommError, RuntimeError) as error:
        return str(error)
    return ""
