"""`commlib plan`: what runs at which size and why."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commlib.tools.cli import LazyGroup
from commlib.tools.cli.options import Numbers, Result, known_name, ranks_option, read_dtypes, result_options
from commlib.tools.report.formats import fold

if TYPE_CHECKING:
    from commlib.plan import Plan


SUBCOMMANDS = {
    "explain": (f"{__name__}:explain", "Say which algorithm a call of OP gets, with which parameters, and why."),
    "show": (f"{__name__}:show", "Print the rules of PLAN, or of the plan that `init()` would take here."),
}


class _Plan(LazyGroup):
    table = SUBCOMMANDS


@click.group(cls=_Plan)
def plan() -> None:
    """Show which algorithm a call gets, and why.

    A PLAN is a file, or the name of one that comes with commlib, such as shm.
    """


_ranks = ranks_option(2, "Number of ranks.")
_backend = click.option("--backend", default="auto", help="Backend whose plan to use without PLAN; auto: as in init().")


@click.command()
@click.argument("plan", required=False, metavar="[PLAN]")
@_ranks
@_backend
@result_options
def show(plan: str | None, ranks: int, backend: str, **where: Any) -> None:
    """Print the rules of PLAN, or of the plan that `init()` would take here; of a faulty file, its first mistake.

    The document of --json has the rules for -n ranks, and how well the plan fits this machine.
    """
    shown, result = read_plan(plan, backend, ranks), Result(**where)
    rules = [rule.document() for rule in shown.rules_of(ranks)]
    head = {
        "schema": "commlib.plan.shown",
        "version": 4,
        "source": shown.source,
        "digest": shown.digest,
        "ranks": ranks,
    }
    fit = {**asdict(shown.fit), "description": shown.fit.description}
    result.say(str(shown))
    rows = [{"op": rule["op"], **entry} for rule in rules for entry in rule["ranges"]]
    result.finish({**head, "fit": fit, "pinned": dict(shown.pinned), "rules": rules}, rows)


@click.command()
@click.argument("op")
@click.option("--sizes", "--bytes", "sizes", type=Numbers(low=0), default="1M", help="Such as 64K,1M.")
@click.option("-d", "--dtype", default="float32", help="Element type: torch's name, or bf16, fp8 …")
@click.option("--redop", default="sum", help="Reduction, if the operation reduces.")
@click.option(
    "--placement",
    type=click.Choice(["plain", "symmetric", "both"]),
    default="plain",
    help="symmetric: the tensor comes from comm.empty().",
)
@click.option(
    "--mode",
    type=click.Choice(["eager", "graph"]),
    default="eager",
    help="graph: the call is captured into a CUDA graph.",
)
@click.option("--max-sms", default=0, type=click.IntRange(0), help="Multiprocessors of the call; 0: no limit.")
@click.option("--async-op", is_flag=True, help="An asynchronous call: on GPUs it leaves multiprocessors to others.")
@click.option("--plan", help="Plan file or name; without it, the plan that init() takes here.")
@_ranks
@_backend
@result_options
def explain(op: str, sizes: tuple[int, ...], placement: str, plan: str | None, backend: str, **call: Any) -> None:
    """Say which algorithm a call of OP gets, with which parameters, and why."""
    from commlib.collectives import COLLECTIVES, REDOPS

    result = Result(call.pop("as_json"), call.pop("output"))
    known_name(op, COLLECTIVES, "collective")
    known_name(call["redop"], REDOPS, "reduction")
    element = str(read_dtypes(call["dtype"])[0]).removeprefix("torch.")
    chosen = read_plan(plan, backend, call["ranks"])
    limits, rows = {name: call[name] for name in ("max_sms", "async_op")}, []
    for size in sizes:
        for memory in ("plain", "symmetric") if placement == "both" else (placement,):
            how = {"world": call["ranks"], "placement": memory, "mode": call["mode"], **limits}
            why = chosen.explain(op, size, element, call["redop"], **how)
            known = {param.name: param.default for param in COLLECTIVES[op].algorithm(why.algorithm).params}
            params = {**known, **why.params}
            text = str(replace(why, source=Path(why.source).name))
            call_row = {"size": size, "placement": memory, "algorithm": why.algorithm, "params": params, "why": text}
            rows.append(call_row)
            named = ", ".join(f"{name} {value}" for name, value in params.items())
            lines = [*str(why).splitlines(), *([f"  parameters: {named}"] if params else [])]
            result.say("\n".join(fold(lines, shutil.get_terminal_size().columns, "    ")))
    head = {"schema": "commlib.plan.explained", "version": 2, "op": op, "type": element, "ranks": call["ranks"]}
    facts = {"mode": call["mode"], "digest": chosen.digest, "source": Path(chosen.source).name}
    result.finish({**head, **facts, "rows": rows}, rows)


def read_plan(plan: str | None, backend: str, world: int) -> Plan:
    """Return the plan that is named, compared with this machine; else what init() would take here."""
    from commlib import backends, env
    from commlib.core.setup import find_plan, override
    from commlib.plan.search import check_names, fingerprint

    if plan is not None:
        chosen = _open(plan)
        check_names(chosen, chosen.fingerprint.get("backend", ""))
        return chosen.fitted(fingerprint(chosen.fingerprint.get("backend", "")))
    backend = env.BACKEND.get() if backend == "auto" else backend
    backend = backends.here(world) if backend == "auto" else backend
    known_name(backend, backends.BACKENDS, "backend")
    return override(find_plan(backend, "auto", world), backend)


def _open(name: str) -> Plan:
    from commlib.plan import Plan
    from commlib.plan.search import shipped, shipped_plan

    if name in shipped() and not Path(name).is_file():
        return shipped_plan(name)
    if not Path(name).exists():
        raise ValueError(
            f"no plan file {name!r}, and no such plan comes with commlib; there are {', '.join(shipped())}"
        )
    return Plan.load(name)
