"""`commlib bench`: time collectives and algorithms beside torch.distributed."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commlib import env
from commlib.cli.options import read_bytes

if TYPE_CHECKING:
    from commlib.cli.bench_job import Job

BRIEF = ("8M", 32)  # largest size and step factor for all collectives at once: five sizes each
FULL = ("64M", 8)
BLOCKS = (5, 41)


class _Command(click.Command):
    """Keeps the words it was called with: the ranks that -n starts are called with the same."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, after taking a copy."""
        ctx.meta["words"] = list(args)
        return super().parse_args(ctx, args)


def _size(*names: str, default: str | None, text: str) -> Callable[[Any], Any]:
    read = None if default is None else read_bytes
    return click.option(*names, default=default, callback=read, show_default=default is not None, help=text)


@click.command(cls=_Command)
@click.argument("ops", nargs=-1, metavar="[OP]...")
@click.option("-n", "--ranks", type=click.IntRange(1), help="Start so many ranks here; else join the launcher's.")
@_size("-b", "--min-bytes", default="8", text="Smallest size (K, M, G are binary).")
@_size("-e", "--max-bytes", default=None, text=f"Largest size.  [default: {FULL[0]}, {BRIEF[0]} without OP]")
@click.option("-f", "--factor", type=click.IntRange(2), help=f"Step.  [default: {FULL[1]}, {BRIEF[1]} without OP]")
@click.option("--dtype", default="float32", show_default=True, help="Element types, comma-separated.")
@click.option("--redop", default="sum", show_default=True, help="Reductions, comma-separated.")
@click.option("--root", default=0, show_default=True, help="Root of rooted collectives.")
@click.option("--algorithms", default="all", show_default=True, help="all, auto (the plan's choice) or names: a,b.")
@click.option("--peers", type=click.Choice(["torch", "none"]), default="torch", show_default=True, help="Beside ours.")
@click.option("--in-place", "places", type=click.Choice(["both", "in", "out"]), default="both", show_default=True)
@click.option("--iters", type=click.IntRange(1), help="Iterations of a block.  [default: as many as fill 200 us]")
@click.option("--warmup", type=click.IntRange(0), default=3, show_default=True, help="Untimed iterations before.")
@click.option("--time", "seconds", default=60.0, show_default=True, help="Seconds to measure for, about.")
@click.option("--check/--no-check", default=True, show_default=True, help="Compare every value.")
@click.option("--backend", default="auto", show_default=True, help="auto, nccl, shm or torch.")
@click.option("--bind", type=click.Choice(["auto", "core", "none"]), default="auto", show_default=True, help="With -n.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Also write the JSON there.")
@click.pass_context
def bench(ctx: click.Context, /, ops: tuple[str, ...], ranks: int | None, bind: str, **options: Any) -> None:
    """Time collectives, each algorithm of them, beside torch.distributed.

    Without OP, all collectives in a compact run. The ranks are those of torchrun, mpirun, srun or `commlib run`,
    or N that -n starts here. Columns and bus factors are nccl-tests'; * marks what the plan picks.
    """
    job = _job(ops, options)
    if ranks is not None and not env.LOCAL_SIZE.is_set():
        from commlib.launch import launch

        words = [sys.executable, "-m", "commlib", "bench", *ctx.meta["words"]]
        spread = "core" if ranks <= len(os.sched_getaffinity(0)) else "none"
        ctx.exit(launch(words, ranks, prefix=False, bind=spread if bind == "auto" else bind))
    if ranks is not None and ranks != env.LOCAL_SIZE.get():
        raise click.UsageError(f"-n {ranks} inside a job of {env.LOCAL_SIZE.get()} ranks; leave -n out")
    from commlib.cli.bench_run import Output, main

    command = shlex.join(["commlib", "bench", *ctx.meta["words"]])
    ctx.exit(main(job, options["backend"], Output(command, options["form"], options["output"])))


def _job(ops: tuple[str, ...], options: dict[str, Any]) -> Job:
    """Turn options into a job; what is wrong with them is said before any rank starts."""
    from commlib.cli.bench_job import Job
    from commlib.collectives import COLLECTIVES, REDOPS
    from commlib.timing import Protocol

    known = _known_algorithms()
    largest, factor = FULL if ops else BRIEF
    low, high = options["min_bytes"], env.parse_bytes(options["max_bytes"] or largest)
    if high < low:
        raise click.UsageError(f"-e is {high} bytes, less than -b with {low}")
    return Job(
        ops=_each(",".join(ops) or ",".join(COLLECTIVES), set(COLLECTIVES), "collective"),
        sizes=tuple(_sizes(low, high, options["factor"] or factor)),
        dtypes=tuple(_dtype(name) for name in options["dtype"].split(",")),
        redops=_each(options["redop"], set(REDOPS), "reduction"),
        root=options["root"],
        algorithms=_each(options["algorithms"], known, "algorithm"),
        peers=() if options["peers"] == "none" else (options["peers"],),
        places={"both": (False, True), "out": (False,), "in": (True,)}[options["places"]],
        protocol=Protocol(blocks=BLOCKS, iterations=options["iters"], warmup=options["warmup"], check=options["check"]),
        seconds=options["seconds"],
    )


def _known_algorithms() -> set[str]:
    from commlib.collectives import COLLECTIVES

    return {"all", "auto"} | {a.name for collective in COLLECTIVES.values() for a in collective.algorithms}


def _each(text: str, known: set[str], what: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in known:
            raise click.UsageError(f"no {what} {name!r}; there are {', '.join(sorted(known))}")
    return names


def _dtype(name: str) -> Any:
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise click.UsageError(f"no element type {name!r}; use torch's names, such as float32 or bfloat16")
    return found


def _sizes(low: int, high: int, factor: int) -> list[int]:
    sizes = [low]
    while sizes[-1] * factor <= high and sizes[-1] > 0:
        sizes.append(sizes[-1] * factor)
    return sizes
