"""`commlib run`: start a command on n ranks of this machine; and `-n N` of commands that run on ranks themselves."""

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

MAX_RANKS = 1024  # more is a slip, which would fill the machine
RANK_BYTES = 256 << 20  # Python, torch and the tools take 170 MiB of a rank's own; the rest is for threads and peers
USED = 0.9  # of the memory that is free
Buffers = Callable[[int], int]  # bytes that each of so many ranks allocates


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option(
    "-n",
    "--ranks",
    "--nproc-per-node",
    "size",
    metavar="N",
    type=click.IntRange(1, MAX_RANKS),
    help="Ranks.  [default: GPUs, or 2]",
)
@click.option("--bind", type=click.Choice(["none", "core"]), default="none", help="core: pin rank r to the r-th core.")
@click.option("--prefix/--no-prefix", default=True, help="Put '[rank] ' before each line.")
@click.option("-m", "--module", is_flag=True, help="CMD is a Python module, as for `python -m`.")
@click.argument("cmd", nargs=-1, required=True, type=click.UNPROCESSED)
def run(size: int | None, bind: str, prefix: bool, module: bool, cmd: tuple[str, ...]) -> None:
    """Run CMD on N ranks: commlib run -n 2 train.py --epochs 3.

    CMD is any program. A file that ends in .py, or a module (-m), is run by the Python that commlib is installed in,
    whose folder comes first on the ranks' PATH.

    Each rank finds the others through commlib.init(), or through torchrun's variables, which are set too. The exit code
    is that of the first rank that fails (128 + signal if it was killed); the other ranks are then ended. Standard input
    goes to rank 0.
    """
    from commlib.tools.launch import launch

    size = size or default_ranks()
    python = [sys.executable, "-m"] if module else [sys.executable] if cmd[0].endswith(".py") else []
    sys.exit(launch([*python, *cmd], size, prefix=prefix, bind=bind))


def default_ranks() -> int:
    """Return one rank for each GPU that the driver shows this process, and 2 where there are fewer."""
    devices = len(list(Path("/dev").glob("nvidia[0-9]*")))
    visible = env.foreign("CUDA_VISIBLE_DEVICES").split(",")
    return max(0 if env.hides_gpus() else min(devices, len(visible)) if visible != [""] else devices, 2)


# --- -n N: start ranks here, called with the same arguments, or join a launcher's


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
