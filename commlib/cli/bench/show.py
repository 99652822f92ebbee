"""`commlib bench show`: what a run printed, again, or in another form."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from commlib.cli.bench import file as bench_file
from commlib.cli.bench import plot as bench_plot
from commlib.cli.bench.formats import FORMS, render


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(FORMS), default="table", show_default=True)
@click.option("--plot", "picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw to a .png or .svg.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write there, not on stdout.")
def show(file: Path, form: str, picture: Path | None, output: Path | None) -> None:
    """Print what the run that wrote FILE printed, in this form or another."""
    if picture is not None:
        bench_plot.check_name(picture)
    document = bench_file.read(file)
    text = render(document, form, shutil.get_terminal_size().columns)
    if output is None:
        click.echo(text)
    else:
        bench_file.write(output, text)
    if picture is not None:
        bench_plot.plot(document, picture)
