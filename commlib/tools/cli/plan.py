"""`commlib plan`: what runs at which size and why; check and write plan files."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commlib.counts import counted
from commlib.tools.cli.options import (
    FILE,
    Result,
    known_name,
    ranks_option,
    read_bytes,
    read_dtypes,
    read_sizes,
    result_options,
)
from commlib.tools.cli.removed import Group
from commlib.tools.report.document import Kind
from commlib.tools.report.schema import Count

if TYPE_CHECKING:
    from commlib.plan import Plan


@dataclass(frozen=True)
class PlanFit:
    """The machine that the plan was measured on, next to this one; a total of 0: the plan names none."""

    score: Count
    total: Count
    differences: list[str]
    description: str


@dataclass(frozen=True)
class PlanRange:
    """A range of sizes of a rule; a * stands for all."""

    op: str
    dtype: str
    redop: str
    placement: str
    mode: str
    above: int | None  # bytes; null: from the smallest
    up_to: int | None  # bytes, including; null: without end
    choice: str  # the algorithm and its parameters
    gain: float | None  # how much faster than the runner-up, as measured
    runner_up: str | None
    confidence: float | None
    rule: str


@dataclass(frozen=True)
class PlanDocument:
    """The ranges of a plan for one number of ranks, in the order in which rules decide."""

    schema: str
    version: int
    source: str
    digest: str
    ranks: int
    fit: PlanFit
    pinned: dict[str, str]  # collective: the algorithm that the environment pins it to
    rows: list[PlanRange]


KIND = Kind("commlib.plan.shown", 2, "commlib plan show --json", of=PlanDocument)
# The classic pair: copies in and out of symmetric memory below the threshold, the plain call above it.
CLASSIC = {"nccl": ("nccl_staged", "nccl_direct"), "shm": ("shm_oneshot", "shm_twoshot")}


@click.group(cls=Group)
def plan() -> None:
    """Show which algorithm a call gets, and why.

    A PLAN is a file, or the name of one that comes with commlib, such as shm.
    """


def _choice(name: str, values: list[str], text: str) -> Callable[[Any], Any]:
    return click.option(name, type=click.Choice(values), default=values[0], show_default=True, help=text)


_ranks = ranks_option(2, "Number of ranks.")
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
@result_options
def show(plan: str | None, ranks: int, backend: str, **where: Any) -> None:
    """Print the rules of PLAN, or of the plan that `init()` would take here.

    The document of --json has the ranges for -n ranks, and how well the plan fits this machine.
    """
    shown, result = read_plan(plan, backend, ranks), Result(**where)
    document = _document(shown, ranks)
    result.say(str(shown))
    result.finish(document, document["rows"])


@plan.command()
@click.argument("op")
@click.option("--bytes", "sizes", metavar="SIZES", default="1M", show_default=True, help="Sizes a,b: K, M, G allowed.")
@click.option("-d", "--dtype", default="float32", show_default=True, help="Element type: torch's name, or bf16, fp8 …")
@click.option("--redop", default="sum", show_default=True, help="Reduction, if the operation reduces.")
@_choice("--placement", ["plain", "symmetric", "both"], "symmetric: the tensor comes from comm.empty().")
@_choice("--mode", ["eager", "graph"], "graph: the call is captured into a CUDA graph.")
@click.option(
    "--max-sms", default=0, show_default=True, type=click.IntRange(0), help="Multiprocessors of the call; 0: no limit."
)
@click.option("--async-op", is_flag=True, help="An asynchronous call: on GPUs it leaves multiprocessors to others.")
@click.option("--plan", help="Plan file or name; without it, the plan that init() takes here.")
@_ranks
@_backend
@result_options
def explain(op: str, sizes: str, placement: str, plan: str | None, backend: str, **call: Any) -> None:
    """Say which algorithm a call of OP gets and why, and how data gets to the peers."""
    from commlib.collectives import COLLECTIVES, REDOPS
    from commlib.plan import Query
    from commlib.tools.cli import plan_paths

    result = Result(call.pop("as_json"), call.pop("output"))
    known_name(op, COLLECTIVES, "collective")
    known_name(call["redop"], REDOPS, "reduction")
    element = str(read_dtypes(call["dtype"])[0]).removeprefix("torch.")
    chosen = read_plan(plan, backend, call["ranks"])
    limits, rows = {name: call[name] for name in ("max_sms", "async_op")}, []
    fold = textwrap.TextWrapper(
        shutil.get_terminal_size().columns, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    for size in read_sizes(sizes):
        for memory in ("plain", "symmetric") if placement == "both" else (placement,):
            query = Query(op, size, element, call["redop"], call["ranks"], memory, call["mode"])
            why = chosen.explain(**asdict(query), **limits)
            rows.append(plan_paths.path_of(why, query))
            for line in [*str(why).splitlines(), *plan_paths.lines_of(rows[-1])]:
                result.say(fold.fill(line))
    result.finish(plan_paths.document(chosen, query, rows), rows)


@plan.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@result_options
@click.pass_context
def validate(ctx: click.Context, /, files: tuple[str, ...], **where: Any) -> None:
    """Check plan files: keys, values and names.

    Print the first mistake of each file on standard error, and exit with 1 if there is one.
    """
    from commlib.core.setup import check_names, usable

    result, rows = Result(**where), list[dict[str, str]]()
    for file in files:
        try:
            checked = _open(file)
            backend = checked.fingerprint.get("backend", "")
            check_names(checked, usable(backend), backend)
            result.say(f"{file}: OK, {counted(len(checked.rules), 'rule')}, plan {checked.digest}")
            rows.append({"file": file, "digest": checked.digest, "wrong": ""})
        except ValueError as error:
            click.echo(f"commlib: {error}", err=True)
            rows.append({"file": file, "digest": "", "wrong": str(error)})
    result.finish({"schema": "commlib.plan.validated", "version": 1, "rows": rows}, rows)
    ctx.exit(int(any(row["wrong"] for row in rows)))


@plan.command()
@click.argument("size", callback=read_bytes)
@click.option("--op", default="all_reduce", show_default=True, help="Collective.")
@click.option("--below", help="Algorithm up to SIZE.  [default: shm_oneshot, nccl_staged]")
@click.option("--above", help="Algorithm beyond SIZE.  [default: shm_twoshot, nccl_direct]")
@ranks_option(None, "Limit the rule to this number of ranks.")
@click.option("--backend", default="shm", show_default=True, help="Backend whose plan is changed.")
@_output
def threshold(
    size: int, op: str, below: str | None, above: str | None, ranks: int | None, backend: str, output: Path | None
) -> None:
    """Write the classic plan: one algorithm up to SIZE, another beyond.

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
    made = Plan.threshold(size, below=low, above=high, op=op, base=base, world=ranks)
    _write(made.file_text, output)


def _document(plan: Plan, world: int) -> dict[str, Any]:
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
        **{"source": plan.source, "digest": plan.digest, "ranks": world},
        "fit": {**asdict(plan.fit), "description": plan.fit.description},
        "pinned": dict(plan.pinned),
        "rows": rows,
    }


def read_plan(plan: str | None, backend: str, world: int) -> Plan:
    """Return the plan that is named, compared with this machine; else what init() would take here."""
    from commlib import backends, env
    from commlib.core.setup import check_names, find_plan, override, usable
    from commlib.plan.search import fingerprint

    if plan is not None:
        chosen = _open(plan)
        check_names(chosen, usable(chosen.fingerprint.get("backend", "")))
        return chosen.fitted(fingerprint(chosen.fingerprint.get("backend", "")))
    backend = env.BACKEND.get() if backend == "auto" else backend
    backend = backends.here(world) if backend == "auto" else backend
    known_name(backend, backends.BACKENDS, "backend")
    return override(find_plan(backend, "auto", world), backend)


def _open(name: str) -> Plan:
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
