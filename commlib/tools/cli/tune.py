"""`commlib tune`: measure every algorithm on this machine and write the plan that `init()` takes from then on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from commlib.counts import counted
from commlib.tools.cli.options import FILE, Seconds, read_bytes, read_dtypes, read_names
from commlib.tools.cli.run import started


@click.command()
@click.argument("ops", nargs=-1, metavar="[OP]...")
@click.option("-n", "--ranks", type=click.IntRange(2), help="Start N ranks here; without it, join the launcher's.")
@click.option("-b", "--min-bytes", "low", default="16", callback=read_bytes, help="Smallest size.")
@click.option("-e", "--max-bytes", "high", callback=read_bytes, help="Largest size.  [default: 256M on GPUs, else 64M]")
@click.option("-d", "--dtype", "dtypes", help="Types; the first stands for those not listed.")
@click.option("--mode", "modes", default="all", help="eager, graph or all.  [default: all on GPUs]")
@click.option("--algorithms", default="all", help="all, or names: a,b.")
@click.option("--time", "seconds", type=Seconds(), help="Total: 90, 60s or 5m.  [default: 60s per operation]")
@click.option("--margin", default=0.05, type=click.FloatRange(0, 1), help="Share of time a change must gain.")
@click.option("--spare", default=0.03, type=click.FloatRange(0, 1), help="Share of time spent for fewer SMs of a GPU.")
@click.option("--backend", default="auto", help="auto, nccl, shm or torch.")
@click.option("--plan", help="Plan to start from.  [default: the one that init() takes here]")
@click.option("--fresh", is_flag=True, help="Choose as if no plan were in force.")
@click.option("--dry-run", is_flag=True, help="Measure and print, write nothing.")
@click.option("--from", "source", type=FILE, help="Make rules from the samples in FILE; measure nothing.")
@click.option("-o", "--output", type=FILE, help="Plan file.  [default: this user's plan for this machine]")
@click.option("--json", is_flag=True, help="Print medians and plan as JSON, and no tables.")
@click.pass_context
def tune(ctx: click.Context, /, ranks: int | None, source: Path | None, **options: Any) -> None:
    """Measure every algorithm of OP (all collectives without it) and write the plan that init() takes from then on.

    Each algorithm must give exactly correct values. The plan in force changes only where it is slower by 5 % and
    0.1 µs. The new one is written after each table: Ctrl-C loses only the table under way.
    """
    from commlib.collectives import COLLECTIVES
    from commlib.plan.rules import MODES
    from commlib.tools.tune.run import buffer_bytes, main, rebuild

    order = SimpleNamespace(**options)
    order.ops = read_names(",".join(order.ops), COLLECTIVES, "collective") if order.ops else tuple(COLLECTIVES)
    order.dtypes = read_dtypes(order.dtypes) if order.dtypes else ()
    order.modes = () if order.modes == "all" else read_names(order.modes, MODES, "mode")
    known = sorted({algorithm.name for collective in COLLECTIVES.values() for algorithm in collective.algorithms})
    order.algorithms = () if order.algorithms == "all" else read_names(order.algorithms, known, "algorithm")
    if order.high is not None and order.high < max(order.low, 1):
        raise click.UsageError(f"-e is {counted(order.high, 'byte')}, but must be {max(order.low, 1)} or more, as -b")
    if order.seconds is not None and order.seconds < 5 * len(order.ops):  # less decides nothing
        raise click.UsageError(f"--time {order.seconds:g} s is too short; give 5 s for each operation")
    if source is not None:
        ctx.exit(rebuild(source, order))
    code = started(ctx, ranks, partial(buffer_bytes, order))
    ctx.exit(main(order) if code is None else code)
