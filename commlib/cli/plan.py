"""`commlib plan`: show the plan in force, or explain which algorithm a call gets and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commlib.cli.options import read_bytes

if TYPE_CHECKING:
    from commlib.plan import Plan

_PATH = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def plan() -> None:
    """Show a plan, or explain which algorithm a call gets and why."""


_world = click.option("-n", "--world", default=2, show_default=True, type=click.IntRange(1), help="Number of ranks.")
_backend = click.option("--backend", default="shm", show_default=True, help="Backend of the shipped plan.")


@plan.command()
@click.argument("file", required=False, type=_PATH)
@_backend
def show(file: Path | None, backend: str) -> None:
    """Print the rules of FILE, or of the plan that `init()` would take here."""
    click.echo(str(_plan(file, backend)))


@plan.command()
@click.argument("op")
@click.option(
    "--bytes",
    "num_bytes",
    callback=read_bytes,
    default="1M",
    show_default=True,
    help="Size: K, M, G allowed.",
)
@click.option("--dtype", default="float32", show_default=True, help="torch name of the element type.")
@click.option("--redop", default="sum", show_default=True, help="Reduction, where the operation reduces.")
@click.option(
    "--placement",
    type=click.Choice(["plain", "symmetric"]),
    default="plain",
    show_default=True,
    help="symmetric: the tensor comes from comm.empty().",
)
@click.option("--plan", "file", type=_PATH, help="Plan file; without it, the plan that init() would take here.")
@_world
@_backend
def explain(
    op: str,
    num_bytes: int,
    dtype: str,
    redop: str,
    placement: str,
    file: Path | None,
    world: int,
    backend: str,
) -> None:
    """Say which algorithm a call of OP gets, by which rule, and what that rule was measured to gain."""
    chosen = _plan(file, backend)
    click.echo(str(chosen.explain(op, num_bytes, dtype, redop, world=world, placement=placement)))


def _plan(file: Path | None, backend: str) -> Plan:
    from commlib.plan import Plan

    return Plan.load(file) if file is not None else Plan.auto(backend)
