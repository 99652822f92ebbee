"""`commlib plan`: what runs at which size and why; check and write plan files."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commlib.counts import counted
from commlib.tools.cli.options import FILE, known_name, read_bytes, read_dtypes
from commlib.tools.cli.removed import Group
from commlib.tools.report.document import Kind

if TYPE_CHECKING:
    from commlib.plan import Plan

KIND = Kind("commlib.plan.shown", 1, "commlib plan show --json", "commlib.tools.cli", "plan_schema.json")
# The classic pair: copies in and out of symmetric memory below the threshold, the plain call above it.
CLASSIC = {"nccl": ("nccl_staged", "nccl_direct"), "shm": ("shm_oneshot", "shm_twoshot")}


@click.group(cls=Group)
def plan() -> None:
    """Show a plan, or explain which algorithm a call gets and why.

    A PLAN is a file, or the name of one that comes with commlib, such as shm.
    """


def _choice(name: str, values: list[str], text: str) -> Callable[[Any], Any]:
    return click.option(name, type=click.Choice(values), default=values[0], show_default=True, help=text)


_ranks = click.option("-n", "--world", default=2, show_default=True, type=click.IntRange(1), help="Number of ranks.")
_backend = click.option(
    "--backend",
    default="auto",
    show_default=True,
    help="Backend whose plan to use without PLAN; auto: as in init().",
)
_output = click.option("-o", "--output", type=FILE, help="File to write; without it, standard output.")


@plan.command()
@click.argument("plan", required=False, metavar="[PLAN]")
@_ranks
@_backend
@click.option(
    "--json", "as_document", is_flag=True, help="Print a JSON document: the ranges for -n ranks, and the fit."
)
def show(plan: str | None, world: int, backend: str, as_document: bool) -> None:
    """Print the rules of PLAN, or of the plan that `init()` would take here."""
    from commlib.tools.report.formats import json_text

    found = read_plan(plan, backend, world)
    click.echo(json_text(_document(found, world)) if as_document else str(found))


@plan.command()
@click.argument("op")
@click.option(
    "--bytes", "num_bytes", callback=read_bytes, default="1M", show_default=True, help="Size: K, M, G allowed."
)
@click.option("--dtype", default="float32", show_default=True, help="Element type: torch's name, or bf16, fp8 …")
@click.option("--redop", default="sum", show_default=True, help="Reduction, if the operation reduces.")
@_choice("--placement", ["plain", "symmetric"], "symmetric: the tensor comes from comm.empty().")
@_choice("--mode", ["eager", "graph"], "graph: the call is captured into a CUDA graph.")
@click.option(
    "--max-sms", default=0, show_default=True, type=click.IntRange(0), help="Multiprocessors of the call; 0: no limit."
)
@click.option("--async-op", is_flag=True, help="An asynchronous call: on GPUs it leaves multiprocessors to others.")
@click.option("--plan", help="Plan file or name; without it, the plan that init() takes here.")
@_ranks
@_backend
def explain(op: str, dtype: str, plan: str | None, world: int, backend: str, **call: Any) -> None:
    """Say which algorithm a call of OP gets, by which rule, for which sizes, and what it gains."""
    from commlib.collectives import COLLECTIVES, REDOPS

    known_name(op, COLLECTIVES, "collective")
    known_name(call["redop"], REDOPS, "reduction")
    element = str(read_dtypes(dtype)[0]).removeprefix("torch.")
    why = read_plan(plan, backend, world).explain(op, dtype=element, world=world, **call)
    fold = textwrap.TextWrapper(
        shutil.get_terminal_size().columns, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    for line in str(why).splitlines():
        click.echo(fold.fill(line))


@plan.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.pass_context
def validate(ctx: click.Context, files: tuple[str, ...]) -> None:
    """Check plan files: keys, values and names.

    Print the first mistake of each file on standard error, and exit with 1 if there is one.
    """
    from commlib.core.setup import check_names, usable

    faulty = False
    for file in files:
        try:
            found = _open(file)
            backend = found.fingerprint.get("backend", "")
            check_names(found, usable(backend), backend)
            click.echo(f"{file}: OK, {counted(len(found.rules), 'rule')}, plan {found.digest}")
        except ValueError as error:
            faulty = True
            click.echo(f"commlib: {error}", err=True)
    ctx.exit(1 if faulty else 0)


@plan.command()
@click.argument("size", callback=read_bytes)
@click.option("--op", default="all_reduce", show_default=True, help="Collective.")
@click.option("--below", help="Algorithm up to SIZE.  [default: shm_oneshot, nccl_staged]")
@click.option("--above", help="Algorithm beyond SIZE.  [default: shm_twoshot, nccl_direct]")
@click.option("-n", "--world", type=click.IntRange(1), help="Limit the rule to this number of ranks.")
@click.option("--backend", default="shm", show_default=True, help="Backend whose plan is changed.")
@_output
def threshold(
    size: int, op: str, below: str | None, above: str | None, world: int | None, backend: str, output: Path | None
) -> None:
    """Write the classic plan: one algorithm up to SIZE, another one beyond.

    Everything else is as in the shipped plan of the backend.
    """
    from commlib.backends import BACKENDS
    from commlib.collectives import algorithm_names
    from commlib.plan import Plan, shipped_plan

    known_name(backend, BACKENDS, "backend")
    base, known = shipped_plan(backend), algorithm_names(backend)
    known_name(op, known, "collective")
    classic = CLASSIC.get(backend) if op == "all_reduce" else None
    low, high = below or (classic and classic[0]), above or (classic and classic[1])
    if not low or not high:
        raise click.UsageError(
            f"{op} on {backend} has no classic pair; name --below and --above: {', '.join(known[op])}"
        )
    for name in (low, high):
        known_name(name, known[op], f"algorithm of {op} on {backend}")
    made = Plan.threshold(size, below=low, above=high, op=op, base=base, world=world)
    _write(made.file_text, output)


def _document(plan: Plan, world: int) -> dict[str, Any]:
    """Return what --json prints; plan_schema.json says what is in it."""
    rows = [
        {
            **{key: getattr(rule, key) for key in ("op", "dtype", "redop", "placement", "mode")},
            "above": above,
            "up_to": entry.max_bytes,
            "choice": entry.choice,
            **{key: getattr(entry, key) for key in ("gain", "runner_up", "confidence")},
            "rule": f"rules[{rule.number}]",
        }
        for rule in plan.rules_of(world)
        for above, entry in rule.spans()
    ]
    return {
        "schema": KIND.name,
        "version": KIND.version,
        **{"source": plan.source, "digest": plan.digest, "world": world},
        "fit": {**asdict(plan.fit), "said": plan.fit.description},
        "pinned": dict(plan.pinned),
        "rows": rows,
    }


def read_plan(plan: str | None, backend: str, world: int) -> Plan:
    """Return the plan that is named, compared with this machine; else what init() would take here."""
    from commlib import backends, env
    from commlib.core.setup import check_names, find_plan, override, usable
    from commlib.plan.search import fingerprint

    if plan is not None:
        found = _open(plan)
        check_names(found, usable(found.fingerprint.get("backend", "")))
        return found.fitted(fingerprint(found.fingerprint.get("backend", "")))
    backend = env.BACKEND.get() if backend == "auto" else backend
    backend = backends.here(world) if backend == "auto" else backend
    known_name(backend, backends.BACKENDS, "backend")
    return override(find_plan(backend, "auto", world), backend)


def _open(name: str) -> Plan:
    """Return the plan of a file, or one that comes with commlib."""
    from commlib.plan import Plan, shipped, shipped_plan

    if name in shipped() and not Path(name).is_file():
        return shipped_plan(name)
    if not Path(name).exists():
        raise ValueError(
            f"no plan file {name!r}, and no such plan comes with commlib; there are {', '.join(shipped())}"
        )
    return Plan.load(name)


def _write(text: str, output: Path | None) -> None:
    from commlib.tools.report.files import write

    if output is None:
        click.echo(text, nl=False)
    else:
        write(output, text)
        click.echo(f"wrote {output}", err=True)
