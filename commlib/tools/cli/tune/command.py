"""`commlib tune`: measure every algorithm on this machine and write the plan that `init()` takes from then on."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commlib.counts import counted
from commlib.tools.cli.options import FILE, Finite, check_files, read_bytes, read_dtypes, read_names
from commlib.tools.cli.ranks import RankCommand, started

if TYPE_CHECKING:
    from commlib.tools.cli.tune.run import Order

LEAST_S = 5.0  # of one operation: less decides nothing


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    number, scale = (value[:-1], {"s": 1.0, "m": 60.0, "h": 3600.0}[value[-1]]) if value[-1:] in "smh" else (value, 1.0)
    try:
        seconds = float(number) * scale
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time; write 60, 60s, 5m or 1h", ctx, param) from None
    if not 0 < seconds < math.inf:
        raise click.BadParameter(f"{value!r} is no finite time above 0", ctx, param)
    return seconds


def _ops(names: tuple[str, ...]) -> tuple[str, ...]:
    from commlib.collectives import COLLECTIVES

    return read_names(",".join(names), COLLECTIVES, "collective") if names else tuple(COLLECTIVES)


def _modes(text: str) -> tuple[str, ...]:
    from commlib.plan import MODES

    return read_names(text, MODES, "mode")


def _algorithms(text: str) -> tuple[str, ...]:
    from commlib.collectives import COLLECTIVES

    names = sorted({a.name for collective in COLLECTIVES.values() for a in collective.algorithms})
    return () if text == "all" else read_names(text, names, "algorithm")


def _by(read: Callable[[Any], tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Return the callback that reads names before any rank starts; no option, no names."""
    return lambda ctx, param, value: () if value is None else read(value)


@click.command(cls=RankCommand)
@click.argument("ops", nargs=-1, metavar="[OP]...", callback=_by(_ops))
@click.option("-n", "--ranks", type=click.IntRange(2), help="Start N ranks here; without it, join the launcher's.")
@click.option("-b", "--min-bytes", "low", default="16", callback=read_bytes, show_default=True, help="Smallest size.")
@click.option(
    "-e", "--max-bytes", "high", callback=read_bytes, help="Largest size.  [default: 256M on GPUs, 64M on the CPU]"
)
@click.option(
    "--dtype",
    "dtypes",
    callback=_by(read_dtypes),
    help="Element types; the first stands for all that are not listed.  [default: bfloat16,float32; CPU: reversed]",
)
@click.option(
    "--mode",
    "modes",
    callback=_by(_modes),
    help="eager, graph or both.  [default: graph,eager on GPUs, eager on the CPU]",
)
@click.option("--algorithms", default="all", show_default=True, callback=_by(_algorithms), help="all, or names: a,b.")
@click.option("--time", "seconds", callback=_seconds, help="Total, such as 60s or 5m.  [default: 60s per operation]")
@click.option(
    "--penalty",
    default=0.02,
    show_default=True,
    type=Finite(0, 1),
    help="Share of time that a change of algorithm must gain.",
)
@click.option(
    "--spare",
    default=0.03,
    show_default=True,
    type=Finite(0, 1),
    help="Share of time to give for fewer multiprocessors, on GPUs; 0: the fastest.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the order of blocks and of the intervals.")
@click.option("--backend", default="auto", show_default=True, help="auto, nccl, shm or torch.")
@click.option("--bind", type=click.Choice(["auto", "core", "none"]), default="auto", show_default=True, help="With -n.")
@click.option("--plan", help="Plan to start from.  [default: the one that init() takes here]")
@click.option("--fresh", is_flag=True, help="Choose as if no plan were in force.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run; keep the sizes it measured.")
@click.option("--dry-run", is_flag=True, help="Measure and print, write nothing.")
@click.option("--force", is_flag=True, help="Write the plan even if it is slower than the default.")
@click.option("--from", "source", type=FILE, help="Make rules from the samples in FILE; measure nothing.")
@click.option("--plot", type=FILE, help="Draw curves and choices to FILE: .png or .svg.")
@click.option("-o", "--output", type=FILE, help="Plan file.  [default: this user's plan for this machine]")
@click.pass_context
def tune(ctx: click.Context, /, ranks: int | None, bind: str, source: Path | None, **options: Any) -> None:
    """Measure every algorithm of OP (all collectives without it) and write the plan that init() takes from then on.

    Each algorithm must give exactly correct values before it is timed. Sizes grow by a factor of √2; an interval says
    where two algorithms cross. The plan in force stays wherever nothing is better with 80 % confidence.
    """
    from commlib.tools.cli.tune.run import Order, buffer_bytes, main, rebuild

    order = Order(**options)
    _check(order)
    if source is not None:
        ctx.exit(rebuild(source, order))
    code = started(ctx, ranks, bind, partial(buffer_bytes, order))
    ctx.exit(main(order, shlex.join(["commlib", "tune", *ctx.meta["words"]])) if code is None else code)


def _check(order: Order) -> None:
    """Say what does not go together before any rank starts."""
    if order.high == 0:
        raise click.UsageError("-e is 0 bytes, of which no call is better than another; give a larger size")
    if order.high is not None and order.high < order.low:
        raise click.UsageError(f"-e is {counted(order.high, 'byte')}, less than -b with {order.low}")
    if order.seconds is not None and order.seconds < LEAST_S * len(order.ops):
        ops = counted(len(order.ops), "operation")
        raise click.UsageError(f"--time {order.seconds:g} s is too short for {ops}; give {LEAST_S:g} s each")
    check_files(None, order.plot)
