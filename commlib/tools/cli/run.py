"""`commlib run`: start a command on n ranks of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from commlib import env

MAX_RANKS = 1024  # more is a slip, which would fill the machine


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
