"""`commlib bench compare`: two runs side by side; what became slower fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from commlib.cli.bench.difference import Difference, difference
from commlib.cli.bench.difference_text import markdown, table
from commlib.cli.bench.rows import KIND
from commlib.report.formats import json_text
from commlib.report.run import terminal_width

DEFAULT = "5%"


def _percent(ctx: click.Context, param: click.Parameter, value: str) -> float:
    try:
        share = float(value.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise click.BadParameter(f"{value!r} is not a share in percent; write 5% or 2.5%", ctx, param)
    return share


@click.command()
@click.argument("before", metavar="A", type=click.Path(path_type=Path))
@click.argument("after", metavar="B", type=click.Path(path_type=Path))
@click.option("--threshold", default=DEFAULT, show_default=True, callback=_percent, help="Less is no difference.")
@click.option("--format", "form", type=click.Choice(["table", "md", "json"]), default="table", show_default=True)
@click.option("--all", "every", is_flag=True, help="List every row, not only what differs.")
@click.pass_context
def compare(ctx: click.Context, before: Path, after: Path, threshold: float, form: str, every: bool) -> None:
    """Compare the run in file B with that in A; exit with 1 if something of ours became slower or wrong.

    Slower: the median by more than the threshold, and nine tenths of the blocks apart from those of A.
    """
    found = difference(_named(before), _named(after), threshold)
    click.echo(_text(found, form, every))
    ctx.exit(int(found.regressions > 0))


def _named(path: Path) -> tuple[str, dict[str, Any]]:
    return path.name, KIND.read(path)


def _text(found: Difference, form: str, every: bool) -> str:
    if form == "json":
        return json_text(found.document(every))
    if form == "md":
        return "\n".join(markdown(found, every))
    return "\n".join(table(found, every, terminal_width()))
