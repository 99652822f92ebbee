"""`commlib bench show`: what a run printed, again, or in another form."""

from __future__ import annotations

from pathlib import Path

import click

from commlib.cli.bench.rows import KIND
from commlib.cli.bench.view import BenchView
from commlib.report import files
from commlib.report.plot import check_name
from commlib.report.run import terminal_width


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(list(BenchView.forms)), default="table", show_default=True)
@click.option("--plot", "picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw to a .png or .svg.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write there, not on stdout.")
def show(file: Path, form: str, picture: Path | None, output: Path | None) -> None:
    """Print what the run that wrote FILE printed, in this form or another."""
    check_name(picture)
    view = BenchView(KIND.read(file), terminal_width())
    if output is None:
        click.echo(view.render(form))
    else:
        files.write(output, view.render(form))
    if picture is not None:
        view.plot(picture)
