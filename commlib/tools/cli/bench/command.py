"""`commlib bench`: time collectives and algorithms next to other libraries; show and compare what was measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from commlib.counts import counted
from commlib.tools.baselines import PEERS
from commlib.tools.bench.result import KIND, only
from commlib.tools.bench.view import BenchView
from commlib.tools.cli import LazyGroup
from commlib.tools.cli.bench.kernels import KERNELS
from commlib.tools.cli.options import EXISTING, FILE, Seconds, grouped_options, read_bytes, write_groups
from commlib.tools.cli.run import command_line, started
from commlib.tools.report.chart import check_name
from commlib.tools.report.document import write

FIRST_PAGE, WHOLE = "Options", "whole"
LARGEST_TEXT = "Largest.  [default: 64M; 8M without OP or below 10 s]"
# What may stand in place of the first OP: name → (module:command, help).
SUBCOMMANDS = {
    "compare": (
        "commlib.tools.cli.bench.compare:compare",
        "Compare two files of results; exit 1 if the second is slower.",
    ),
    "show": ("commlib.tools.cli.bench.command:show", "Print a file of results again, or in another form."),
    **{name: (f"commlib.tools.cli.bench.kernels:{name}", kernel.help) for name, kernel in KERNELS.items()},
}


class _Bench(LazyGroup):
    """Measures, unless its first word names a subcommand."""

    table, heading = SUBCOMMANDS, "Commands in place of OP"
    allow_interspersed_args = True

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the words as the subcommand's, or as our own."""
        context = click.Context(self, info_name=info_name, parent=parent)
        if args and (command := self.get_command(context, args[0])) is not None:
            return command.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return click.Command.parse_args(self, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        return click.Command.invoke(self, ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one screen, or with --help-all every option and command."""
        whole = ctx.meta.get(WHOLE, False)
        write_groups(self, ctx, formatter, () if whole else (FIRST_PAGE,))
        if whole:
            self.format_commands(ctx, formatter)
        else:
            formatter.write_text(f"In place of OP: {', '.join(self.table)}.")


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[WHOLE] = True
        click.echo(ctx.get_help())
        ctx.exit()


first, what, long, others, output = map(
    grouped_options, (FIRST_PAGE, "What to measure", "How long, and on which ranks", "Next to whom", "Output")
)
BACKENDS = click.Choice(["auto", "nccl", "shm", "torch"])
PLACES, FACTOR, FORMS = (
    click.Choice(["both", "in", "out"]),
    click.FloatRange(1, min_open=True),
    click.Choice(BenchView.forms),
)


@click.group(cls=_Bench, invoke_without_command=True, subcommand_metavar="")
@click.argument("ops", nargs=-1, metavar="[OP]...")
@first("-n", "--ranks", metavar="N", type=click.IntRange(1), help="Start N ranks; else join the launcher's.")
@first("-b", "--min-bytes", metavar="SIZE", callback=read_bytes, help="Smallest size.  [default: 8]")
@first("-e", "--max-bytes", metavar="SIZE", callback=read_bytes, help=LARGEST_TEXT)
@first("-f", "--factor", metavar="F", type=FACTOR, help="From size to size.  [default: 8, 32 without OP]")
@first("--sizes", metavar="A,B", help="In place of these: 64K,16x7168 (rows x hidden).")
@first("-d", "--dtype", metavar="A,B", default="float32", help="Element types, or all.")
@first("--redop", metavar="A,B", default="sum", help="Reductions, or all.")
@first("--peers", metavar="A,B", default="auto", help=f"{', '.join(PEERS)}, or none.")
@first("--graph", is_flag=True, help="Replays of CUDA graphs, not eager calls.")
@first("--phases", is_flag=True, help="Where the time of one call goes, on each rank.")
@first("--time", "seconds", metavar="TIME", type=Seconds(), default="1m", help="To measure for: 5, 5s, 2m.")
@first("-o", "--output", metavar="FILE", type=FILE, help="Also write .json, .csv or .md.")
@first("--plot", metavar="FILE", type=FILE, help="Also draw the curves: .png or .svg.")
@first("--help-all", is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help="Show every option.")
@what("-r", "--root", metavar="R", type=click.IntRange(0), default=0, help="Root of rooted collectives.")
@what("--algorithms", metavar="A,B", default="all", help="Ours: names, auto (the plan's), all.")
@what("--in-place", "places", metavar="FORM", type=PLACES, default="both", help="in, out or both.")
@long("--backend", metavar="NAME", type=BACKENDS, default="auto", help="Of ours: nccl, shm or torch.")
@long("--iters", metavar="K", type=click.IntRange(1), help="Calls of a block.  [default: as fill 200 us]")
@long("-w", "--warmup", metavar="K", type=click.IntRange(0), default=3, help="Untimed calls before.")
@long("--check/--no-check", default=True, help="Compare every value.")
@others("--peer", metavar="FILE", type=EXISTING, multiple=True, help="Python file whose make() returns one more.")
@output("--json", "form", flag_value="json", help="Print the document, not the table.")
@output("--format", "form", metavar="FORM", type=FORMS, help=f"{', '.join(BenchView.forms)}.")
@click.pass_context
def bench(ctx: click.Context, /, ops: tuple[str, ...], ranks: int | None, **options: Any) -> None:
    """Time collectives next to other libraries; without OP, all of them."""
    from commlib.tools.cli.bench.read import read_job

    ops = ops or ("all_reduce",) if options["phases"] else ops
    if ranks is not None and sys.stderr.isatty():
        click.echo(f"commlib: starting {counted(ranks, 'rank')}", err=True)  # loading torch takes seconds
    job = read_job(ops, ranks, options)
    if options["phases"]:
        from commlib.tools.cli.bench import phases

        job = phases.one_call(ctx, job, options)
    code = started(ctx, ranks, job.buffer_bytes)
    if code is not None:
        ctx.exit(code)
    from commlib.tools.bench.measure import main
    from commlib.tools.report.run import Output

    form, command = options["form"] or ("table" if ops else "page"), command_line(ctx)
    if options["phases"]:
        ctx.exit(phases.main(job, Output(phases.PhasesView, form, options["output"]), command))
    ctx.exit(main(job, Output(BenchView, form, options["output"], options["plot"]), command))


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("ops", nargs=-1, metavar="[OP]...")
@click.option("--format", "form", type=click.Choice(BenchView.forms), help="[default: by FILE's suffix, or table]")
@click.option("--json", "form", flag_value="json", help="Print the document.")
@click.option("--plot", "picture", type=FILE, help="Draw to FILE: .png or .svg.")
@click.option("-o", "--output", type=FILE, help="Write to FILE instead of stdout.")
@click.option("--part", type=click.IntRange(1), help="Show only the N-th run of a FILE with several.  [default: all]")
def show(
    file: Path, ops: tuple[str, ...], form: str | None, picture: Path | None, output: Path | None, part: int | None
) -> None:
    """Print what the run that wrote FILE printed, in this form or another; only these collectives, if named."""
    check_name(picture)
    runs = KIND.read_all(file)
    if part is not None and part > len(runs):
        raise click.UsageError(f"--part {part}: {file} has {counted(len(runs), 'run')}")
    views = [BenchView(run) for run in only(runs if part is None else [runs[part - 1]], ops)]
    suffix = output.suffix[1:] if output else ""
    form = form or (suffix if suffix in BenchView.forms else "table")
    if picture and len(views) > 1:
        raise click.UsageError(f"--plot draws one run, and {file} has {len(views)}; name it with --part")
    text = "\n\n".join(view.render(form) for view in views)
    if output is None:
        click.echo(text)
    else:
        write(output, text)
    if picture is not None:
        views[0].plot(picture)
