"""`commlib bench`: time collectives and algorithms beside other libraries; compare and show what was measured."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Any

import click

from commlib.tools.baselines import PEERS
from commlib.tools.baselines.kernels import KERNELS
from commlib.tools.cli import LazyGroup
from commlib.tools.cli.bench.view import BenchView
from commlib.tools.cli.options import EXISTING, FILE, POSITIVE, Finite, read_bytes
from commlib.tools.cli.ranks import started
from commlib.tools.report import nsight

# What may stand in place of the first OP: name → (module:command, help).
SUBCOMMANDS = {
    "compare": (
        "commlib.tools.cli.bench.compare:compare",
        "Compare two files of results; exit 1 if the second is slower.",
    ),
    "show": ("commlib.tools.cli.bench.show:show", "Print a file of results again, or in another form."),
    **{name: (f"commlib.tools.cli.bench.kernels:{name}", kernel.help) for name, kernel in KERNELS.items()},
}


class _Bench(LazyGroup):
    """Measures, unless its first word names a subcommand; keeps its words for the ranks that -n starts."""

    table, heading = SUBCOMMANDS, "Commands in place of OP"
    allow_interspersed_args = True

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the words as the subcommand's, or as our own."""
        own = click.Context(self, info_name=info_name, parent=parent)
        if args and (command := self.get_command(own, args[0])) is not None:
            return command.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as a command does, after taking a copy."""
        ctx.meta["words"] = words = list(args)
        try:
            return click.Command.parse_args(self, ctx, args)
        except click.NoSuchOption as error:
            from commlib.tools.bench.foreign import remedy

            if text := remedy(error.option_name, words):
                raise click.UsageError(text, ctx) from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Measure."""
        return click.Command.invoke(self, ctx)


_PEERS = "; ".join(f"{name}: {text}" for name, text in PEERS.items())


@click.group(cls=_Bench, invoke_without_command=True, subcommand_metavar="")
@click.argument("ops", nargs=-1, metavar="[OP]...")
@click.option("-n", "--ranks", type=click.IntRange(1), help="Start N ranks here; without it, join the launcher's.")
@click.option("-b", "--min-bytes", callback=read_bytes, help="Smallest size (K, M, G are binary).  [default: 8]")
@click.option("-e", "--max-bytes", callback=read_bytes, help="Largest size.  [default: 64M, 8M without OP]")
@click.option(
    "-f",
    "--factor",
    type=Finite(1, min_open=True),
    help="Ratio of one size to the one before, such as 2 or 1.4142.  [default: 8, 32 without OP]",
)
@click.option("--sizes", metavar="A,B", help="Sizes in place of -b, -e, -f: bytes or ROWSxHIDDEN; 16x7168:bf16.")
@click.option("-d", "--dtype", default="float32", help="Element types a,b (bf16, half … too), or all.")
@click.option("--redop", default="sum", help="Reductions a,b, or all.")
@click.option("-r", "--root", type=click.IntRange(0), default=0, help="Root of rooted collectives.")
@click.option("--algorithms", default="all", help="all, auto (the plan's choice) or names: a,b.")
@click.option("--peers", default="auto", help=f"Other libraries to measure: auto, none, or a,b.  ({_PEERS})")
@click.option("--peer", type=EXISTING, multiple=True, help="File whose make() returns one more peer.")
@click.option("--params", multiple=True, metavar="NAME=A,B", help="Also measure all combinations of these parameters.")
@click.option("--baseline", help="Speed-ups compare with this row, or with best.  [default: the first peer]")
@click.option("--window", type=click.IntRange(1), help="Of send_recv: messages in flight; bandwidth and rate.")
@click.option("--pairs", is_flag=True, help="Of send_recv: the lower half of the ranks sends to the upper half.")
@click.option("--overlap", is_flag=True, help="Asynchronous calls: alone, beside computing, and what that hides.")
@click.option("--phases", is_flag=True, help="Show where the time of one call goes, on each rank.  [64K; --time 5]")
@click.option("--symmetric", is_flag=True, help="With --phases: tensors in symmetric memory, as of comm.empty().")
@click.option("--trace", type=FILE, help="With --phases: also write some calls to FILE, for Perfetto.")
@click.option("--graph", is_flag=True, help="Time replays of CUDA graphs instead of eager calls.")
@click.option("--in-place", "places", type=click.Choice(["both", "in", "out"]), default="both")
@click.option(
    "--iters", type=click.IntRange(1), help="Iterations of a block, nccl-tests' -n.  [default: as fill 200 us]"
)
@click.option("-w", "--warmup", type=click.IntRange(0), default=3, help="Untimed iterations before.")
@click.option("--time", "seconds", type=POSITIVE, default=60.0, help="Seconds to measure, approximately.")
@click.option("--check/--no-check", default=True, help="Compare every value.")
@click.option("-c", "checks", type=click.IntRange(0), help="0 is --no-check, as in nccl-tests.")
@click.option("--seed", default=0, help="Seed of the order of blocks and of the intervals.")
@click.option("--backend", type=click.Choice(["auto", "nccl", "shm", "torch"]), default="auto", help="Our backend.")
@click.option("--bind", type=click.Choice(["auto", "core", "none"]), default="auto", help="Pinning of ranks, with -n.")
@click.option("--plan", type=EXISTING, help="Use this plan file instead of the plan in force.")
@click.option("--percentiles", is_flag=True, help="Also show the fastest block and the 99th percentile.")
@click.option("--full", is_flag=True, help="Print every row also without OP, in place of a page.")
@click.option("--format", "form", type=click.Choice(BenchView.forms), help="[default: table, page without OP]")
@click.option(
    "-o", "--output", type=FILE, help="Also write the results to FILE: JSON, or .csv, .md, .osu, .html by its suffix."
)
@click.option("--plot", type=FILE, help="Also draw the curves to FILE: .png or .svg.")
@click.option("--ncu", "tool", flag_value="ncu", help=nsight.HELP["ncu"])
@click.option("--nsys", "tool", flag_value="nsys", help=nsight.HELP["nsys"])
@click.option("--once", is_flag=True, hidden=True, help="Make one call: what --ncu looks at.")
@click.pass_context
def bench(ctx: click.Context, /, ops: tuple[str, ...], ranks: int | None, bind: str, **options: Any) -> None:
    """Time collectives: each of their algorithms, beside other libraries.

    Without OP, time all collectives at a few sizes. The ranks are those that torchrun, mpirun, srun or `commlib run`
    started, or -n starts them here. Columns and bus factors are those of nccl-tests; * marks the plan's choice.
    """
    from commlib.tools.bench import once
    from commlib.tools.bench.job import buffer_bytes
    from commlib.tools.cli.bench.options import read_job

    ops = ops or ("all_reduce",) if options["phases"] else ops
    job = read_job(ops, ranks, options)
    if options["phases"] or options["symmetric"] or options["trace"]:
        from commlib.tools.cli.bench import phases

        job = phases.one_call(ctx, job, options)
    if options["tool"]:
        ctx.exit(nsight.run(once.command(options["tool"], job, ranks, ctx.meta["words"])))
    code = started(ctx, ranks, bind, partial(buffer_bytes, job))
    if code is not None:
        ctx.exit(code)
    if options["once"]:
        ctx.exit(once.main(job))
    from commlib.tools.cli.bench.run import main
    from commlib.tools.report.run import Output

    form = options["form"] or ("table" if ops or options["full"] or options["phases"] else "page")
    output = Output(BenchView, form, options["output"], options["plot"])
    command = shlex.join(["commlib", "bench", *ctx.meta["words"]])
    ctx.exit(phases.main(job, output, options, command) if options["phases"] else main(job, output, command))
