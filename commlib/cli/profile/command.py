"""`commlib profile`: one kernel beside torch, torch.compile and Triton; a subcommand for each row of KERNELS."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import click

from commlib.cli.profile import KERNELS, Listed
from commlib.cli.ranks import Words

SECONDS, SWEEP_SECONDS = 10.0, 60.0
_WRITTEN: dict[str, Any] = {
    "type": click.Path(dir_okay=False, path_type=Path),
    "is_flag": False,
    "flag_value": "-",
    "metavar": "[FILE]",
}


@click.group()
def profile() -> None:
    """Time a kernel beside torch, torch.compile and Triton, and show what of the copy bandwidth it reaches."""


def _file(*names: str, text: str, bare: str) -> click.Option:
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.Option(names, type=kind, is_flag=False, flag_value=bare, metavar="[FILE]", help=text)


def _options(name: str, listed: Listed) -> list[click.Parameter]:
    """Return the options of a kernel's subcommand."""
    heats = [("--cold", "Sets of tensors in rotation, more than the cache holds.  [default]"), ("--hot", "One set.")]
    time = f"Seconds to measure for, about.  [default: {SECONDS:g}; with --sweep {SWEEP_SECONDS:g}]"
    peer = click.Path(exists=True, dir_okay=False, path_type=Path)
    chosen = click.Choice(listed.patterns)
    several = len(listed.patterns) > 1
    return [
        click.Option(["--dims", "--dim"], help="Elements of a row, a,b; most new tokens of a request."),
        click.Option(["-n", "--rows"], help="Ids, tokens or requests, a,b."),
        click.Option(["--dtype"], help="Element types a,b, short ones too."),
        click.Option(["--pattern"], type=chosen, hidden=not several, help="Of the ids.  [default: random]"),
        click.Option(["--compare-patterns"], is_flag=True, hidden=not several, help="All patterns, side by side."),
        *(click.Option([flag, "heat"], flag_value=flag[2:], help=text) for flag, text in heats),
        *(click.Option([f"--{word}", "variant"], flag_value=word, help=_VARIANTS[word]) for word in listed.variants),
        click.Option(["--sweep"], is_flag=True, help="All sizes, cold and hot."),
        click.Option(["--flush"], is_flag=True, help="Empty the cache before each replay: cold where sets are small."),
        click.Option(["--compile/--no-compile", "compile_"], default=None, help="torch.compile.  [default: on GPUs]"),
        click.Option(["--peer"], type=peer, multiple=True, help="File with candidates(kernel, case, inputs)."),
        click.Option(["--time", "seconds"], type=click.FloatRange(0, min_open=True), help=time),
        click.Option(["--device"], default="auto", show_default=True, help="cpu, cuda, cuda:1 …"),
        click.Option(["--seed"], default=0, show_default=True, help="Of the order of blocks and of the intervals."),
        _file(
            "-o", "--json", "output", text="Write JSON there; without FILE, on stdout in place of the table.", bare="-"
        ),
        _file("--plot", text="Draw latency and share of the copy: .png or .svg.", bare=f"profile-{name}.png"),
        click.Option(["--ncu", "tool"], flag_value="ncu", help="Print the ncu command for one call, and run it."),
        click.Option(["--nsys", "tool"], flag_value="nsys", help="Likewise for nsys."),
        click.Option(["--once"], is_flag=True, hidden=True, help="Make one call of ours: what --ncu looks at."),
    ]


_VARIANTS = {
    "masked": "Ids of a whole vocabulary, a quarter of them in the shard here.",
    "fp8": "Caches of float8_e4m3fn, with scales.",
}


def _run(name: str, **options: Any) -> None:
    """Measure, or show how another tool does."""
    from commlib.cli.profile import nsight
    from commlib.cli.profile.job import read_job
    from commlib.cli.profile.run import Output, main

    context = click.get_current_context()
    options["seconds"] = options["seconds"] or (SWEEP_SECONDS if options["sweep"] else SECONDS)
    for flag in ("pattern", "compare_patterns", "variant", "heat", "tool"):
        options.setdefault(flag, None)
    job = read_job(name, options)
    if options["once"]:
        context.exit(nsight.once(job.kernel, job.cases[0], job.settings))
    if options["tool"]:
        context.exit(nsight.profile(options["tool"], job.kernel, job.cases[0]))
    command = shlex.join(["commlib", "profile", name, *context.meta["words"]])
    context.exit(main(job, Output(command, options["output"], options["plot"])))


for _name, _listed in KERNELS.items():
    profile.add_command(Words(_name, callback=partial(_run, _name), params=_options(_name, _listed), help=_listed.help))


@profile.command(cls=Words)
@click.option("--time", "seconds", default=SECONDS, show_default=True, type=click.FloatRange(0, min_open=True))
@click.option("--leaves", default=100_000, show_default=True, type=click.IntRange(2), help="Of the tree that evicts.")
@click.option("--seed", default=0, show_default=True, help="Of the order of blocks.")
@click.option(
    "-o", "--json", "output", **_WRITTEN, help="Write JSON there; without FILE, on stdout in place of the table."
)
@click.pass_context
def radix(ctx: click.Context, seconds: float, leaves: int, seed: int, output: Path | None) -> None:
    """Calls of RadixCache and prefix_match from Python, on the CPU, beside numpy, torch and a dictionary of pages."""
    from commlib.cli.profile.radix import main

    ctx.exit(main(shlex.join(["commlib", "profile", "radix", *ctx.meta["words"]]), seconds, leaves, seed, output))
