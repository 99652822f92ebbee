"""`commlib radix`: simulate a cache on traces of requests, and make such traces."""

from __future__ import annotations

import json
import shlex
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click

from commlib.cli.radix.workloads import WORKLOADS, Draw, Workload
from commlib.cli.ranks import Words

SCALES = {"k": 10**3, "m": 10**6, "g": 10**9}
EVICTIONS = {"leaf": ("leaf",), "tail": ("tail",), "both": ("leaf", "tail")}
PICTURES = (".png", ".svg")
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def radix() -> None:
    """Play traces of requests on a radix cache: which policy finds how much, at which size."""


def _capacities(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, ...]:
    """Return the numbers of tokens of a list such as 100k,1M, rising, each once."""
    found = set()
    for item in text.split(","):
        word = item.strip().lower()
        scale = SCALES.get(word[-1:], 1)
        try:
            tokens = float(word[:-1] if scale > 1 else word) * scale
        except ValueError:
            raise click.BadParameter(f"{item!r} is no number of tokens; write 5000, 100k or 1M", ctx, param) from None
        if not 1 <= tokens < 2**31 or tokens != int(tokens):
            raise click.BadParameter(f"{item!r} is not a whole number from 1 to 2^31 - 1", ctx, param)
        found.add(int(tokens))
    return tuple(sorted(found))


def _policies(ctx: click.Context, param: click.Parameter, text: str) -> tuple[str, ...]:
    from commlib.radix import POLICIES

    names = POLICIES if text == "all" else tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in POLICIES:
            raise click.BadParameter(f"no policy {name!r}; there are all, {', '.join(POLICIES)}", ctx, param)
    return names


@radix.command(cls=Words)
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...", type=click.Path(exists=True, path_type=Path))
@click.option("--policy", "policies", default="all", show_default=True, callback=_policies, help="all, or a list a,b.")
@click.option(
    "--capacity", "capacities", default="100k,300k,1M", show_default=True, callback=_capacities, help="Tokens, a,b."
)
@click.option("--page-size", default=1, show_default=True, type=click.IntRange(1, 65536), help="Tokens of a page.")
@click.option(
    "--eviction",
    type=click.Choice(list(EVICTIONS)),
    default="leaf",
    show_default=True,
    help="Whole leaves, or pages from their end.",
)
@click.option(
    "-o",
    "--json",
    "output",
    type=_FILE,
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write JSON there; without FILE, on stdout in place of the tables.",
)
@click.option(
    "--plot",
    "picture",
    type=_FILE,
    is_flag=False,
    flag_value="radix.png",
    metavar="[FILE]",
    help="Draw hit rate over capacity: .png or .svg.",
)
@click.pass_context
def simulate(
    ctx: click.Context, /, traces: tuple[Path, ...], output: Path | None, picture: Path | None, **of: Any
) -> None:
    """Serve the requests of each TRACE one by one with a cache of each policy and capacity, and compare.

    A trace has a JSON object on each line: {"tokens": [5, 6, [1000, 512]], "output": 64}, where [1000, 512] stands for
    512 consecutive numbers; docs/radix.md has the rest. Capacities count tokens; k and M are 1000 and 1000000.
    """
    if picture is not None and picture.suffix not in PICTURES:
        raise click.UsageError(f"--plot {picture.name} is no {' or '.join(PICTURES)} file; give it such a name")
    for option, path in (("--json", output), ("--plot", picture)):
        if path is not None and str(path) != "-" and not path.parent.is_dir():
            raise click.UsageError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if of["page_size"] > of["capacities"][0]:
        raise click.UsageError(f"--capacity {of['capacities'][0]} has no room for a page of {of['page_size']} tokens")
    from commlib.cli.radix.document import Settings
    from commlib.cli.radix.run import Output, main

    settings = Settings(of["policies"], of["capacities"], EVICTIONS[of["eviction"]], of["page_size"])
    command = shlex.join(["commlib", "radix", "simulate", *ctx.meta["words"]])
    ctx.exit(main(traces, settings, command, Output(output, picture)))


@radix.group()
def generate() -> None:
    """Write a trace of made-up requests, one kind of workload each."""


def _generate(name: str, output: Path, requests: int, seed: int, **of: Any) -> None:
    lines = WORKLOADS[name].lines(Draw(seed), of)
    with output.open("w", encoding="utf-8") as file:
        for line in islice(lines, requests):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _options(workload: Workload) -> list[click.Parameter]:
    """Return the options of a workload's subcommand."""
    return [
        click.Option(["-o", "--output"], type=_FILE, required=True, help="Trace to write."),
        click.Option(["--requests"], default=5000, show_default=True, type=click.IntRange(1), help="How many."),
        click.Option(["--seed"], default=0, show_default=True, help="Of the chance; the same seed, the same trace."),
        *(
            click.Option(
                [f"--{option.name}"],
                default=option.default,
                show_default=True,
                type=click.IntRange(1) if isinstance(option.default, int) else click.FloatRange(0, option.most),
                help=option.help,
            )
            for option in workload.options
        ),
    ]


for _name, _workload in WORKLOADS.items():
    generate.add_command(
        click.Command(_name, callback=partial(_generate, _name), params=_options(_workload), help=_workload.help)
    )
