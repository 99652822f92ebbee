"""`commlib radix`: simulate a cache on traces of requests, and make such traces."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import partial
from inspect import Parameter, signature
from itertools import islice
from pathlib import Path
from typing import Any

import click

from commlib.cli.options import FILE, JSON, check_files, picture, read_names
from commlib.cli.radix.workloads import HELP, MOST, WORKLOADS, Draw
from commlib.cli.ranks import Words

SCALES = {"k": 10**3, "m": 10**6, "g": 10**9}
EVICTIONS = {"leaf": ("leaf",), "tail": ("tail",), "both": ("leaf", "tail")}


@click.group()
def radix() -> None:
    """Play traces of requests on a radix cache: which policy finds how much, at which size."""


def _capacities(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, ...]:
    """Return the numbers of tokens of a list such as 100k,1M, rising, each once."""
    return tuple(sorted({_tokens(item.strip().lower(), ctx, param) for item in text.split(",")}))


def _tokens(word: str, ctx: click.Context, param: click.Parameter) -> int:
    scale = SCALES.get(word[-1:], 1)
    try:
        tokens = float(word[:-1] if scale > 1 else word) * scale
    except ValueError:
        raise click.BadParameter(f"{word!r} is no number of tokens; write 5000, 100k or 1M", ctx, param) from None
    if not 1 <= tokens < 2**31 or tokens != int(tokens):
        raise click.BadParameter(f"{word!r} is not a whole number from 1 to 2^31 - 1", ctx, param)
    return int(tokens)


def _policies(ctx: click.Context, param: click.Parameter, text: str) -> tuple[str, ...]:
    from commlib.radix import POLICIES

    names = read_names(text, ("all", *POLICIES), "policy")
    return POLICIES if "all" in names else names


@radix.command(cls=Words)
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...", type=click.Path(exists=True, path_type=Path))
@click.option("--policy", "policies", default="all", show_default=True, callback=_policies, help="all, or a list a,b.")
@click.option(
    "--capacity", "capacities", default="100k,300k,1M", show_default=True, callback=_capacities, help="Tokens, a,b."
)
@click.option("--page-size", default=1, show_default=True, type=click.IntRange(1, 65536), help="Tokens of a page.")
@click.option(
    "--eviction",
    "evictions",
    type=click.Choice(list(EVICTIONS)),
    default="leaf",
    show_default=True,
    callback=lambda ctx, param, name: EVICTIONS[name],
    help="Whole leaves, or pages from their end.",
)
@click.option("-o", "--json", "output", **JSON)
@click.option("--plot", **picture("radix.png", "hit rate over capacity"))
@click.pass_context
def simulate(
    ctx: click.Context, /, traces: tuple[Path, ...], output: Path | None, plot: Path | None, **of: Any
) -> None:
    """Serve the requests of each TRACE one by one with a cache of each policy and capacity, and compare.

    A trace has a JSON object on each line: {"tokens": [5, 6, [1000, 512]], "output": 64}, where [1000, 512] stands for
    512 consecutive numbers; docs/radix.md has the rest. Capacities count tokens; k and M are 1000 and 1000000.
    """
    check_files(output, plot, "--json")
    if of["page_size"] > of["capacities"][0]:
        raise click.UsageError(f"--capacity {of['capacities'][0]} has no room for a page of {of['page_size']} tokens")
    from commlib.cli.radix.report import SimulationReport, SimulationView
    from commlib.cli.radix.run import main
    from commlib.report.run import Output

    report = SimulationReport(of, shlex.join(["commlib", "radix", "simulate", *ctx.meta["words"]]))
    ctx.exit(main(traces, report, Output(SimulationView, path=output, picture=plot)))


@radix.group()
def generate() -> None:
    """Write a trace of made-up requests, one kind of workload each."""


def _generate(name: str, output: Path, requests: int, seed: int, **of: Any) -> None:
    from commlib.report import files

    check_files(output, None)
    lines = islice(WORKLOADS[name](Draw(seed), **of), requests)
    files.write(output, "\n".join(json.dumps(line, separators=(",", ":")) for line in lines))


def _options(workload: Callable[..., Any]) -> list[click.Parameter]:
    """Return the options of a workload's subcommand."""
    numbers = [number for number in signature(workload).parameters.values() if number.kind is Parameter.KEYWORD_ONLY]
    return [
        click.Option(["-o", "--output"], type=FILE, required=True, help="Trace to write."),
        click.Option(["--requests"], default=5000, show_default=True, type=click.IntRange(1), help="How many."),
        click.Option(["--seed"], default=0, show_default=True, help="Of the chance; the same seed, the same trace."),
        *(_number(number.name, number.default) for number in numbers),
    ]


def _number(name: str, default: float) -> click.Option:
    kind = click.IntRange(1) if isinstance(default, int) else click.FloatRange(0, MOST.get(name))
    return click.Option([f"--{name}"], default=default, show_default=True, type=kind, help=HELP[name])


for _name, _workload in WORKLOADS.items():
    _words: dict[str, Any] = {"params": _options(_workload), "help": _workload.__doc__}
    generate.add_command(click.Command(_name, callback=partial(_generate, _name), **_words))
