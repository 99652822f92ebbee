"""`-n N` of commands that run on ranks: start them here, called with the same arguments, or join a launcher's."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable

import click

from commlib import env
from commlib.counts import counted


class RankCommand(click.Command):
    """Saves its arguments: the ranks that -n starts are called with the same."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["words"] = list(args)
        return super().parse_args(ctx, args)


def command_line(ctx: click.Context) -> str:
    """Return the command as it was typed, for the document of a run."""
    return shlex.join(["commlib", *_names(ctx), *ctx.meta["words"]])


def _names(ctx: click.Context) -> list[str]:
    return [] if ctx.parent is None else [*_names(ctx.parent), str(ctx.info_name)]


def started(ctx: click.Context, ranks: int | None, bind: str, buffers: Callable[[int], int]) -> int | None:
    """Run the command on so many ranks and return the exit code; None on the ranks themselves, and without -n.

    `buffers` says how many bytes each of so many ranks allocates.
    """
    if ranks is None:
        return None
    if env.JOB.is_set():
        if ranks != (size := int(os.environ["WORLD_SIZE"])):
            raise click.UsageError(f"-n {ranks} inside a job of {counted(size, 'rank')}; leave -n out")
        return None
    from commlib import bootstrap
    from commlib.tools import capacity
    from commlib.tools.launch import launch

    if env.BOOTSTRAP.get() != "torchrun" and (around := bootstrap.around()):
        launcher, size = around
        raise click.UsageError(
            f"-n {ranks} would start a job in each of the {size} processes that {launcher} started: leave out -n, to "
            f"run on these, or {launcher}, to start {ranks} here; {env.BOOTSTRAP.name}=torchrun starts all jobs"
        )
    capacity.check(ranks, ctx.params["backend"], buffers)
    command = [sys.executable, "-m", "commlib", *_names(ctx), *ctx.meta["words"]]
    cores = len(os.sched_getaffinity(0))
    if ranks > cores:
        click.echo(f"commlib: {ranks} ranks share {counted(cores, 'core')}: timings are unreliable", err=True)
    spread = "core" if ranks <= cores else "none"
    return launch(command, ranks, prefix=False, bind=spread if bind == "auto" else bind)
