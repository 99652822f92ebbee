"""`commlib profile`: one kernel beside others, a subcommand for each row of KERNELS; and the phases of a collective."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commlib.tools.baselines.kernels import KERNELS, Listed
from commlib.tools.cli.options import EXISTING, FILE, JSON, POSITIVE, picture, read_bytes
from commlib.tools.cli.ranks import RankCommand, started
from commlib.tools.report import nsight

if TYPE_CHECKING:
    import torch

    from commlib.tools.baselines.kernels.case import Case

SECONDS, SWEEP_SECONDS = 10.0, 60.0
HEADS = click.IntRange(1, 1024)


@click.group()
def profile() -> None:
    """Time a kernel beside torch, torch.compile and Triton; show where the time of a collective goes."""


def _options(name: str, listed: Listed) -> list[click.Parameter]:
    """Return the options of a kernel's subcommand."""
    time = f"Seconds to measure, approximately.  [default: {SECONDS:g}; with --sweep {SWEEP_SECONDS:g}]"
    peer = click.Path(exists=True, dir_okay=False, path_type=Path)
    chosen = click.Choice(listed.patterns)
    single = len(listed.patterns) == 1
    return [
        click.Option(["--dims", "--dim"], help="Elements per row, a,b; for metadata, most new tokens per request."),
        click.Option(["-n", "--rows"], help="Number of ids, tokens or requests, a,b."),
        click.Option(["--dtype"], help="Element types a,b (bf16, half … too)."),
        click.Option(["--pattern"], type=chosen, hidden=single, help="Order of ids or slots.  [default: random]"),
        click.Option(["--compare-patterns"], is_flag=True, hidden=single, help="Measure all patterns, side by side."),
        *_choice("heat", {"cold": "Rotate sets of tensors that exceed the cache.  [default]", "hot": "Use one set."}),
        *_choice("variant", listed.variants),
        click.Option(["--sweep"], is_flag=True, help="Measure all sizes, cold and hot."),
        click.Option(["--flush"], is_flag=True, help="Empty the cache before each replay, also for small sets."),
        click.Option(
            ["--compile/--no-compile", "compile_"], default=None, help="Measure torch.compile.  [default: on GPUs]"
        ),
        click.Option(["--peer"], type=peer, multiple=True, help="File with candidates(kernel, case, inputs)."),
        click.Option(["--time", "seconds"], type=POSITIVE, help=time),
        click.Option(["--device"], default="auto", show_default=True, help="cpu, cuda, cuda:1 …"),
        click.Option(["--seed"], default=0, show_default=True, help="Seed of block order and intervals."),
        click.Option(["-o", "--json", "output"], **JSON),
        click.Option(["--plot"], **picture(f"profile-{name}.png", "latency and share of the copy")),
        *_choice("tool", nsight.HELP),
        click.Option(["--once"], is_flag=True, hidden=True, help="Make one call of ours: what --ncu looks at."),
    ]


def _choice(name: str, flags: Mapping[str, str]) -> list[click.Parameter]:
    """Return flags of which one says what `name` is; without any it is None."""
    return [click.Option([f"--{flag}", name], flag_value=flag, default=None, help=text) for flag, text in flags.items()]


def _run(name: str, **options: Any) -> None:
    """Measure, or show how another tool does."""
    from commlib.tools.cli.profile.job import read_job
    from commlib.tools.cli.profile.run import main
    from commlib.tools.cli.profile.view import ProfileView
    from commlib.tools.report.run import Output

    context = click.get_current_context()
    options["seconds"] = options["seconds"] or (SWEEP_SECONDS if options["sweep"] else SECONDS)
    options.setdefault("variant", None)
    job = read_job(name, options)
    _look(options, job.cases[0], job.settings.device)
    output = Output(ProfileView, path=options["output"], picture=options["plot"])
    context.exit(main(job, output, shlex.join(["commlib", "profile", name, *context.meta["words"]])))


for _name, _listed in KERNELS.items():
    profile.add_command(
        RankCommand(_name, callback=partial(_run, _name), params=_options(_name, _listed), help=_listed.help)
    )


@profile.command(cls=RankCommand)
@click.option("--time", "seconds", default=SECONDS, show_default=True, type=POSITIVE)
@click.option(
    "--leaves", default=100_000, show_default=True, type=click.IntRange(200), help="Leaves of the evicting tree."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the order of blocks.")
@click.option("-o", "--json", "output", **JSON)
@click.pass_context
def radix(ctx: click.Context, seconds: float, leaves: int, seed: int, output: Path | None) -> None:
    """Time RadixCache and prefix_match from Python on the CPU, beside numpy, torch and a dictionary of pages."""
    from commlib.tools.cli.options import check_files
    from commlib.tools.cli.profile.radix import RadixReport, RadixView, main
    from commlib.tools.report.run import Output

    check_files(output, None, "--json")
    report = RadixReport(leaves, shlex.join(["commlib", "profile", "radix", *ctx.meta["words"]]))
    ctx.exit(main(report, Output(RadixView, path=output), seconds, seed))


@profile.command(cls=RankCommand)
@click.option("--phase", type=click.Choice(["decode", "prefill"]), default="decode", show_default=True)
@click.option("-b", "--batch", help="Number of requests, a,b.")
@click.option("-l", "--length", help="Tokens of each request, a,b.")
@click.option("--heads", type=HEADS, help="Heads of queries.  [default: 64; on a CPU 8]")
@click.option("--kv-heads", type=HEADS, help="Heads of K and V.  [default: 8; on a CPU 1]")
@click.option("--dim", type=click.IntRange(1, 256), default=128, show_default=True, help="Features of a head.")
@click.option("--page-size", help="Tokens of a page of the cache, a,b.  [default: 16]")
@click.option("--dtype", help="Element types a,b (bf16, half … too).  [default: bfloat16]")
@click.option("--fp8", is_flag=True, help="Cache of float8_e4m3fn, with scales.")
@click.option("--ragged", is_flag=True, help="Lengths from 1 to twice --length.")
@click.option("--sweep", is_flag=True, help="Measure many sizes, pages of 1 and 64, and an 8-bit cache.")
@click.option(
    "--compare", is_flag=True, help="Measure torch's backends, FlexAttention, flash-attn and FlashInfer, too."
)
@click.option("--tune", is_flag=True, help="Measure ours compiled and divided in other ways, the fastest first.")
@click.option(
    "--compile/--no-compile", "compile_", default=None, help="Measure FlexAttention in --compare.  [default: on GPUs]"
)
@click.option(
    "--time",
    "seconds",
    type=POSITIVE,
    help=f"Seconds to measure, approximately.  [default: {SECONDS:g}; with --sweep {SWEEP_SECONDS:g}]",
)
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1 …")
@click.option("--seed", default=0, show_default=True, help="Seed of block order and intervals.")
@click.option("-o", "--json", "output", **JSON)
@click.option("--ncu", "tool", flag_value="ncu", default=None, help=nsight.HELP["ncu"])
@click.option("--nsys", "tool", flag_value="nsys", default=None, help=nsight.HELP["nsys"])
@click.option("--once", is_flag=True, hidden=True, help="Make one call of ours: what --ncu looks at.")
def attention(**options: Any) -> None:
    """Time attention over a paged cache, or of whole prompts, against the ceilings of this machine."""
    from commlib.tools.cli.profile.attention import main
    from commlib.tools.cli.profile.attention_job import read_job
    from commlib.tools.cli.profile.attention_view import AttentionView
    from commlib.tools.report.run import Output

    ctx = click.get_current_context()
    options["seconds"] = options["seconds"] or (SWEEP_SECONDS if options["sweep"] else SECONDS)
    job = read_job(options)
    _look(options, job.cases[0], job.settings.device)
    command = shlex.join(["commlib", "profile", "attention", *ctx.meta["words"]])
    ctx.exit(main(job, Output(AttentionView, path=options["output"]), command))


def _look(options: Mapping[str, Any], case: Case, device: torch.device) -> None:
    """Make one call of a case and end, or have Nsight's tool look at it, if that is what is asked for."""
    from commlib.tools.baselines.kernels import once

    if options["once"]:
        click.get_current_context().exit(once.once(case, device))
    if options["tool"]:
        click.get_current_context().exit(nsight.run(once.command(options["tool"], case)))


@profile.command(cls=RankCommand)
@click.argument("op", default="all_reduce")
@click.option("-n", "--ranks", type=click.IntRange(1), help="Start N ranks here; without it, join the launcher's.")
@click.option("--bytes", "num_bytes", callback=read_bytes, default="64K", show_default=True, help="Size of the call.")
@click.option("-d", "--dtype", default="float32", show_default=True, help="Element type (bf16, half … too).")
@click.option("--redop", default="sum", show_default=True, help="Reduction, if the operation reduces.")
@click.option("-r", "--root", type=click.IntRange(0), default=0, help="Root of rooted collectives.")
@click.option("--algorithm", default="auto", show_default=True, help="Algorithm; auto: the plan's choice.")
@click.option("--symmetric", is_flag=True, help="Tensors in symmetric memory, as of comm.empty().")
@click.option("--in-place", is_flag=True, help="The result replaces the input.")
@click.option("--graph", is_flag=True, help="Look at replays of a CUDA graph instead of eager calls.")
@click.option("--time", "seconds", default=5.0, show_default=True, type=POSITIVE, help="Seconds to measure, about.")
@click.option("--backend", type=click.Choice(["auto", "nccl", "shm"]), default="auto", help="Our backend.")
@click.option("--bind", type=click.Choice(["auto", "core", "none"]), default="auto", help="Pinning of ranks, with -n.")
@click.option("--plan", help="Plan file in place of the plan in force; with --analyze also a name, such as shm.")
@click.option("--analyze", metavar="SIZES", help="Explain which path calls of sizes a,b take, without making them.")
@click.option("--results", type=EXISTING, help="File of `commlib bench -o`: times and the limit, for --analyze.")
@click.option("--trace", type=FILE, help="Also write the phases of some calls to FILE, for Perfetto: JSON.")
@click.option("-o", "--json", "output", **JSON)
@click.option("--plot", **picture("profile-comm.png", "the phases of one call on all ranks"))
@click.pass_context
def comm(ctx: click.Context, /, op: str, ranks: int | None, bind: str, **options: Any) -> None:
    """Show where the time of one call of OP goes: Python, native code, launch, and the phases of its kernel."""
    from commlib.tools.bench.job import buffer_bytes
    from commlib.tools.cli.profile.comm_job import read_job
    from commlib.tools.report.run import Output

    command = shlex.join(["commlib", "profile", "comm", *ctx.meta["words"]])
    if options["analyze"] is not None:
        ctx.exit(_analyze(op, ranks, options, command))
    job = read_job(op, ranks, options)
    code = started(ctx, ranks, bind, partial(buffer_bytes, job.bench))
    if code is not None:
        ctx.exit(code)
    from commlib.tools.cli.profile.comm import main
    from commlib.tools.cli.profile.comm_view import CommView

    output = Output(CommView, path=options["output"], picture=options["plot"])
    ctx.exit(main(job, output, command))


def _analyze(op: str, ranks: int | None, options: dict[str, Any], command: str) -> int:
    from commlib.tools.cli.profile.comm_analysis import AnalysisReport, read_analysis
    from commlib.tools.cli.profile.comm_analysis_view import AnalysisView
    from commlib.tools.report.run import Output

    report, output = (
        AnalysisReport(read_analysis(op, ranks, options), command),
        Output(AnalysisView, path=options["output"]),
    )
    output.open(report, 1)
    output.rows(report.rows)
    output.finish("")
    return 0
