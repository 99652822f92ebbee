"""`commlib radix`: simulate a cache on traces of requests, and make such traces."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from inspect import Parameter, signature
from itertools import islice
from pathlib import Path
from typing import Any

import click

from commlib.tools.cli.options import EXISTING, FILE, JSON, Finite, check_files, picture, read_names
from commlib.tools.cli.ranks import Words
from commlib.tools.traces.importers import ENCODERS, IMPORTERS
from commlib.tools.traces.workloads import HELP, MOST, WORKLOADS, Draw, Line

SCALES = {"k": 10**3, "m": 10**6, "g": 10**9}
EVICTIONS = {"leaf": ("leaf",), "tail": ("tail",), "both": ("leaf", "tail")}


@click.group()
def radix() -> None:
    """Run traces of requests through a radix cache, and compare the hit rates of policies and capacities."""


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
    "--capacity", "capacities", default="100k,300k,1M", show_default=True, callback=_capacities, help="Tokens: a,b."
)
@click.option("--page-size", default=1, show_default=True, type=click.IntRange(1, 65536), help="Tokens per page.")
@click.option(
    "--eviction",
    "evictions",
    type=click.Choice(list(EVICTIONS)),
    default="leaf",
    show_default=True,
    callback=lambda ctx, param, name: EVICTIONS[name],
    help="Evict whole leaves, or pages from their end.",
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
    from commlib.tools.cli.radix.report import SimulationReport, SimulationView
    from commlib.tools.cli.radix.run import main
    from commlib.tools.report.run import Output

    report = SimulationReport(of, shlex.join(["commlib", "radix", "simulate", *ctx.meta["words"]]))
    ctx.exit(main(traces, report, Output(SimulationView, path=output, picture=plot)))


@radix.group()
def generate() -> None:
    """Write a trace of synthetic requests; each command makes one kind of workload."""


@radix.group("import")
def import_() -> None:
    """Convert a public trace; requests keep the order of its file."""


def _write(lines: Callable[..., Iterator[Line]], source: Any, output: Path, requests: int | None, **of: Any) -> None:
    from commlib.tools.report import files

    check_files(output, None, endings=())
    files.write(output, (json.dumps(line, separators=(",", ":")) for line in islice(lines(source, **of), requests)))


def _writer(
    name: str, lines: Callable[..., Iterator[Line]], source: click.Parameter, many: click.Option
) -> click.Command:
    """Return the command that writes the lines of a function; its keywords are options."""
    keywords = [each for each in signature(lines).parameters.values() if each.kind is Parameter.KEYWORD_ONLY]
    output = click.Option(["-o", "--output"], type=FILE, required=True, help="Trace to write.")
    options = [source, output, many, *(_option(each.name, each.default) for each in keywords)]
    return click.Command(name, callback=partial(_write, lines), params=options, help=lines.__doc__)


def _option(name: str, default: float | str) -> click.Option:
    kinds = {int: click.IntRange(1), float: Finite(0, MOST.get(name)), str: click.Choice(list(ENCODERS))}
    return click.Option([f"--{name}"], default=default, show_default=True, type=kinds[type(default)], help=HELP[name])


_count = partial(click.Option, ["--requests"], type=click.IntRange(1))
_seed = click.Option(
    ["--seed", "source"],
    default=0,
    show_default=True,
    callback=lambda ctx, param, seed: Draw(seed),
    help="Random seed; the same seed gives the same trace.",
)
for _name, _lines in WORKLOADS.items():
    generate.add_command(_writer(_name, _lines, _seed, _count(default=5000, show_default=True, help="Requests.")))
for _name, _lines in IMPORTERS.items():
    _file = click.Argument(["source"], type=EXISTING, metavar="FILE")
    import_.add_command(_writer(_name, _lines, _file, _count(help="Number of requests; without it, all.")))
