"""`commlib bench show`: what a run printed, again, or in another form."""

from __future__ import annotations

from pathlib import Path

import click

from commlib.counts import counted
from commlib.tools.bench.rows import KIND, only
from commlib.tools.cli.bench.view import BenchView
from commlib.tools.cli.options import FILE
from commlib.tools.report import files
from commlib.tools.report.chart import check_name


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("ops", nargs=-1, metavar="[OP]...")
@click.option("--format", "form", type=click.Choice(BenchView.forms), help="[default: by FILE's suffix, or table]")
@click.option("--plot", "picture", type=FILE, help="Draw to FILE: .png or .svg.")
@click.option("-o", "--output", type=FILE, help="Write to FILE instead of stdout.")
@click.option("--part", type=click.IntRange(1), help="Show only the N-th run of a FILE with several.  [default: all]")
def show(
    file: Path, ops: tuple[str, ...], form: str | None, picture: Path | None, output: Path | None, part: int | None
) -> None:
    """Print what the run that wrote FILE printed, in this form or another; of these collectives alone, if named."""
    check_name(picture)
    runs = KIND.read_all(file)
    if part is not None and part > len(runs):
        raise click.UsageError(f"--part {part}: {file} has {counted(len(runs), 'run')}")
    views = [BenchView(run) for run in only(runs if part is None else [runs[part - 1]], ops)]
    form = form or _form(output)
    drawn = "--plot" if picture else "--format html" if form == "html" else ""
    if drawn and len(views) > 1:
        raise click.UsageError(f"{drawn} draws one run, and {file} has {len(views)}; name it with --part")
    text = "\n\n".join(view.render(form) for view in views)
    if output is None:
        click.echo(text)
    else:
        files.write(output, text)
    if picture is not None:
        views[0].plot(picture)


def _form(output: Path | None) -> str:
    """Return the form that a file's name asks for."""
    suffix = output.suffix[1:] if output else ""
    return suffix if suffix in BenchView.forms else "table"
