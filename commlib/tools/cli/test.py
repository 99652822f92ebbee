"""`commlib test`: check every algorithm of this installation on live ranks; needs no checkout."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from commlib.counts import counted
from commlib.tools.cli.options import Result, known_name, ranks_option, result_options
from commlib.tools.cli.ranks import RankCommand, command_line
from commlib.tools.report.document import Document, Kind, Report, Row

if TYPE_CHECKING:
    from commlib.tools.testing import Ranks


BUFFER_BYTES = 128 << 20  # what a rank allocates to check a collective


@dataclass(frozen=True)
class CheckedAlgorithm:
    """One algorithm on one number of ranks."""

    ranks: int
    backend: str
    op: str
    algorithm: str
    wrong: str  # the first thing that is wrong, with its rank; empty: nothing


@dataclass(frozen=True)
class CheckedDocument(Document):
    rows: list[CheckedAlgorithm]
    notes: list[str]  # what was left out, and why


KIND = Kind("commlib.test", 1, "commlib test --json", of=CheckedDocument)


class Checked(Report):
    """Collects what was checked, and what was left out."""

    def content(self) -> dict[str, Any]:
        return {"rows": self.rows, "notes": self.notes}


@click.command(cls=RankCommand)
@ranks_option(None, "Number of ranks; without it 2, 3 and 4.")
@click.option("--quick", is_flag=True, help="Two ranks, few sizes and types: a few seconds.")
@click.option("--op", "only", metavar="OP", help="Check one collective only.")
@result_options
@click.pass_context
def test(ctx: click.Context, /, ranks: int | None, quick: bool, only: str | None, **where: Any) -> None:
    """Check every algorithm of this installation on live ranks: values, types, reductions, ragged sizes."""
    from commlib.collectives import COLLECTIVES
    from commlib.tools import capacity

    sizes = [ranks] if ranks is not None else [2] if quick else [2, 3, 4]
    names = [known_name(only, COLLECTIVES, "collective")] if only is not None else list(COLLECTIVES)
    if ranks is not None:
        capacity.check(ranks, "auto", lambda ranks: BUFFER_BYTES)
    start, report, result = time.perf_counter(), Checked(KIND, command_line(ctx)), Result(**where)
    for line in _run(report, sizes, names, quick):
        result.say(line)
    spent, failed = time.perf_counter() - start, sum(bool(row["wrong"]) for row in report.rows)
    cores = counted(os.cpu_count() or 1, "core")
    result.say(f"{len(report.rows) - failed} passed, {failed} failed in {spent:.1f} s on {cores}")
    result.finish(report.document(), report.rows)
    ctx.exit(1 if failed else 0)


def _run(report: Report, sizes: Sequence[int], names: Sequence[str], quick: bool) -> Iterator[str]:
    for size in sizes:
        backends, left_out = _backends(names, size)
        report.notes += left_out
        yield from left_out
        for backend in backends:
            for row in _check_backend(size, backend, names, quick):
                report.rows.append(row)
                yield from _lines(row)


def _lines(row: Row) -> list[str]:
    state = click.style("FAIL", fg="red") if row["wrong"] else click.style("ok", fg="green")
    line = f"{counted(row['ranks'], 'rank'):<7}  {row['op']:<16} {row['algorithm']:<18} {state}"
    return [line, f"    {row['wrong']}"] if row["wrong"] else [line]


def _backends(names: Sequence[str], size: int) -> tuple[list[str], list[str]]:
    """Return every backend that can run here, and what is said of one that cannot."""
    import torch

    from commlib.collectives import COLLECTIVES

    there = sorted({algorithm.backend for name in names for algorithm in COLLECTIVES[name].algorithms})
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if "nccl" not in there or gpus >= size:
        return there, []
    there.remove("nccl")
    return there, [f"{counted(size, 'rank'):<7}  nccl is left out: it needs a GPU for each rank, and there are {gpus}"]


def _check_backend(size: int, backend: str, names: Sequence[str], quick: bool) -> Iterator[Row]:
    """Run every algorithm of one backend on one set of ranks; yield a row with what is wrong with each, or ''."""
    from commlib.collectives import algorithm_names
    from commlib.tools.testing import RankError, Ranks

    pairs = [(name, algorithm) for name in names for algorithm in algorithm_names(backend)[name]]
    try:
        with Ranks(size, backend=backend) as ranks:
            for name, algorithm in pairs:
                wrong = _check(ranks, name, algorithm, quick)
                yield {"ranks": size, "backend": backend, "op": name, "algorithm": algorithm, "wrong": wrong}
    except RankError as error:  # of ranks that cannot start
        raise error.cause from None


def _check(ranks: Ranks, name: str, algorithm: str, quick: bool) -> str:
    from commlib.errors import CommError
    from commlib.tools.testing.conformance import EVERY_SIZE, EVERY_TYPE, QUICK, check_algorithm

    try:
        for scope in (QUICK,) if quick else (EVERY_TYPE, EVERY_SIZE):
            for rank, verdict in enumerate(ranks.run(check_algorithm, name, algorithm, scope)):
                if verdict.wrong:
                    return f"rank {rank}: {verdict.wrong}"
    except (CommError, RuntimeError) as error:
        return str(error)
    return ""
