"""`-n N` of commands that run on ranks: start them here, called with the same arguments, or join a launcher's."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import click

from commlib import env
from commlib.counts import counted

RANK_BYTES = 256 << 20  # Python, torch and the tools take 170 MiB of a rank's own; the rest is for threads and peers
USED = 0.9  # of the memory that is free
Buffers = Callable[[int], int]  # bytes that each of so many ranks allocates


def command_line(ctx: click.Context) -> str:
    """Return the command as it was typed, for the document of a run."""
    return shlex.join(["commlib", *ctx.meta["words"]])


def started(ctx: click.Context, ranks: int | None, buffers: Buffers) -> int | None:
    """Run the command on so many ranks and return the exit code; None on the ranks themselves, and without -n."""
    if ranks is None:
        return None
    if env.JOB.is_set():
        if ranks != (size := int(env.foreign("WORLD_SIZE"))):
            raise click.UsageError(f"-n {ranks} inside a job of {counted(size, 'rank')}; leave -n out")
        return None
    from commlib import bootstrap
    from commlib.tools.launch import launch

    if env.BOOTSTRAP.get() != "torchrun" and (around := bootstrap.around()):
        launcher, size = around
        raise click.UsageError(
            f"-n {ranks} would start a job in each of the {size} processes that {launcher} started: leave out -n, to "
            f"run on these, or {launcher}, to start {ranks} here; {env.BOOTSTRAP.name}=torchrun starts all jobs"
        )
    check_ranks(ranks, ctx.params["backend"], buffers)
    command = [sys.executable, "-m", "commlib", *ctx.meta["words"]]
    cores = len(os.sched_getaffinity(0))
    if ranks > cores:
        click.echo(f"commlib: {ranks} ranks share {counted(cores, 'core')}: timings are unreliable", err=True)
    return launch(command, ranks, prefix=False, bind="core" if ranks <= cores else "none")


def check_ranks(ranks: int, backend: str, buffers: Buffers) -> None:
    """Refuse, before any rank starts, more than the backend serves or the free memory of the machine holds."""
    import torch

    from commlib.native import library

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    served = {"nccl": gpus, "torch": ranks}.get(backend, max(gpus, library.max_shm_ranks()))
    if ranks > served:
        raise click.UsageError(f"-n {ranks} is more than fits here: backend {backend} serves {served} on this machine")
    needed = RANK_BYTES + library.shm_section_bytes(ranks) + buffers(ranks)
    free = free_memory()
    if ranks * needed > USED * free:
        of_each = f"each takes {needed >> 20} MiB, and {free >> 20} MiB of memory are free"
        raise click.UsageError(f"-n {ranks} is more than fits here: {of_each}")


def free_memory() -> int:
    text = Path("/proc/meminfo").read_text(encoding="utf-8")
    return int(re.search(r"MemAvailable: *(\d+)", text)[1]) << 10  # type: ignore[index]
