"""`commlib tune`: measure every algorithm on this machine and write the plan that `init()` takes from then on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commlib import env
from commlib.cli.options import read_bytes
from commlib.cli.ranks import Words, started

if TYPE_CHECKING:
    from commlib.cli.tune.run import Order

LEAST_S = 5.0  # of one operation: less decides nothing


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    number, scale = (value[:-1], {"s": 1.0, "m": 60.0, "h": 3600.0}[value[-1]]) if value[-1:] in "smh" else (value, 1.0)
    try:
        seconds = float(number) * scale
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time; write 60, 60s, 5m or 1h", ctx, param) from None
    if not seconds > 0:
        raise click.BadParameter(f"{value!r} is not above 0", ctx, param)
    return seconds


@click.command(cls=Words)
@click.argument("ops", nargs=-1, metavar="[OP]...")
@click.option("-n", "--ranks", type=click.IntRange(2), help="Start so many ranks here; else join the launcher's.")
@click.option("-b", "--min-bytes", default="16", callback=read_bytes, show_default=True, help="Smallest size.")
@click.option("-e", "--max-bytes", help="Largest size.  [default: 256M on GPUs, 64M on the CPU]")
@click.option("--dtype", help="Types; the first stands for all others.  [default: bfloat16,float32; CPU: reversed]")
@click.option("--mode", help="eager, graph or both.  [default: graph,eager on GPUs, eager on the CPU]")
@click.option("--algorithms", default="all", show_default=True, help="all, or names: a,b.")
@click.option("--time", "seconds", callback=_seconds, help="In all, such as 60s or 5m.  [default: 60s per operation]")
@click.option("--penalty", default=0.02, show_default=True, help="What a switch between sizes must gain, as a share.")
@click.option("--seed", default=0, show_default=True, help="Of the order of blocks and of the intervals.")
@click.option("--backend", default="auto", show_default=True, help="auto, nccl, shm or torch.")
@click.option("--bind", type=click.Choice(["auto", "core", "none"]), default="auto", show_default=True, help="With -n.")
@click.option("--plan", help="Plan in force: where to start from.  [default: what init() takes here]")
@click.option("--fresh", is_flag=True, help="Write what was measured even where the plan in force is as good.")
@click.option("--resume", is_flag=True, help="Go on after an interrupted run: sizes that it measured stand.")
@click.option("--dry-run", is_flag=True, help="Measure and print, write nothing.")
@click.option("--force", is_flag=True, help="Write the plan even where it is slower than the default.")
@click.option(
    "--from",
    "source",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Measure nothing: rules of FILE's samples.",
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Curves and choices, as .png or .svg.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Plan file.  [default: yours]")
@click.pass_context
def tune(ctx: click.Context, /, ops: tuple[str, ...], ranks: int | None, bind: str, **options: Any) -> None:
    """Measure every algorithm of OP (all collectives without it) and write the plan that init() takes from then on.

    Each algorithm must give exactly right values before it is timed. Sizes follow a grid of √2; where two algorithms
    cross, the interval says how sure that is. A plan that is slower than the default is not written.
    """
    source = options.pop("source")
    order = _order(ops, options)
    if source is not None:
        from commlib.cli.tune.run import rebuild

        ctx.exit(rebuild(source, order))
    code = started(ctx, "tune", ranks, bind)
    if code is not None:
        ctx.exit(code)
    from commlib.cli.tune.run import main

    ctx.exit(main(order, shlex.join(["commlib", "tune", *ctx.meta["words"]])))


def _order(ops: tuple[str, ...], options: dict[str, Any]) -> Order:
    """Turn options into an order; what is wrong with them is said before any rank starts."""
    from commlib.cli.tune.run import Order
    from commlib.collectives import COLLECTIVES
    from commlib.plan import MODES

    names = {a.name for collective in COLLECTIVES.values() for a in collective.algorithms}
    algorithms = () if options["algorithms"] == "all" else _each(options["algorithms"], names, "algorithm")
    wanted = _each(",".join(ops), set(COLLECTIVES), "collective") if ops else tuple(COLLECTIVES)
    high = None if options["max_bytes"] is None else env.parse_bytes(options["max_bytes"])
    if high is not None and high < options["min_bytes"]:
        raise click.UsageError(f"-e is {high} bytes, less than -b with {options['min_bytes']}")
    if options["seconds"] is not None and options["seconds"] < LEAST_S * len(wanted):
        raise click.UsageError(
            f"--time {options['seconds']:g} s is too short for {len(wanted)} operations; give {LEAST_S:g} s each"
        )
    if options["plot"] is not None and options["plot"].suffix not in (".png", ".svg"):
        raise click.UsageError(f"--plot {options['plot'].name}: write a .png or .svg file")
    kept = ("penalty", "seed", "backend", "plan", "fresh", "resume", "dry_run", "force", "plot", "output", "seconds")
    return Order(
        ops=wanted,
        dtypes=tuple(_dtype(name) for name in options["dtype"].split(",")) if options["dtype"] else (),
        modes=_each(options["mode"], set(MODES), "mode") if options["mode"] else (),
        algorithms=algorithms,
        low=max(1, options["min_bytes"]),
        high=high,
        **{name: options[name] for name in kept},
    )


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
