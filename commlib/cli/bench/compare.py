"""`commlib bench compare`: two runs side by side; what became slower fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from commlib.bench.difference import Difference, Pair, difference
from commlib.bench.rows import KIND, label, median_us, title
from commlib.report.document import Row
from commlib.report.figures import fitted, size_text
from commlib.report.formats import json_text, markdown_table
from commlib.report.table import Column, Table, fold
from commlib.report.view import grouped

DEFAULT = "5%"
TIME = 8  # characters


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
    found = difference((before.name, KIND.read(before)), (after.name, KIND.read(after)), threshold)
    texts = {"json": lambda: json_text(found.document(every)), "md": lambda: _markdown(found, every)}
    click.echo(texts.get(form, lambda: _table(found, every, shutil.get_terminal_size().columns))())
    ctx.exit(int(found.regressions > 0))


def _verdict(pair: Pair) -> str:
    return {"wrong": f"{pair.after['wrong']} wrong", "same": ""}.get(pair.verdict, pair.verdict)


COLUMNS = (
    Column("size", lambda pair: size_text(pair.after["size"]), 10, "(B)"),
    Column("algorithm", lambda pair: label(pair.after), 19, left=True),
    Column("form", lambda pair: "in" if pair.after["in_place"] else "out", 4, left=True, spare=2),
    Column("A", lambda pair: fitted(median_us(pair.before), TIME), TIME, "(us)", spare=1),
    Column("B", lambda pair: fitted(median_us(pair.after), TIME), TIME, "(us)", spare=1),
    Column("B/A", lambda pair: fitted(pair.ratio, 6), 6),
    Column("", _verdict, 7, left=True),
)


def _table(found: Difference, every: bool, width: int) -> str:
    table, names = Table(COLUMNS, width), [f"# {side}: {name}" for side, name in zip("AB", found.names, strict=True)]
    lines = fold([*names, *(f"# warning: {warning}" for warning in found.warnings)], width)
    for pairs in _by_title(found.listed(every)):
        lines += [*table.head(title(pairs[0].after)), *map(table.line, pairs)]
    return "\n".join([*lines, "#", *fold((f"# {line}" for line in _summary(found)), width)])


def _markdown(found: Difference, every: bool) -> str:
    lines = [f"`{found.names[0]}` (A) and `{found.names[1]}` (B)", ""]
    lines += [f"- **warning**: {warning}" for warning in found.warnings] + [""] * bool(found.warnings)
    for pairs in _by_title(found.listed(every)):
        table = markdown_table(COLUMNS, pairs)
        lines += [f"### {title(pairs[0].after)}", "", *(line.replace("*", "\\*") for line in table), ""]
    return "\n".join(lines + [f"- {line}" for line in _summary(found)])


def _by_title(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    return grouped(pairs, lambda pair: title(pair.after))


def _summary(found: Difference) -> Iterator[str]:
    """Yield what to remember of a comparison."""
    yield f"rows by a threshold of {found.threshold * 100:.3g} %; B/A is the geometric mean"
    yield from (_summed(name, part) for name, part in found.summary().items())
    yield from (f"only in {name}: {_content(rows)}" for name, rows in zip("AB", found.only, strict=True) if rows)


def _summed(name: str, part: dict[str, Any]) -> str:
    counts = [f"{part['verdicts'][verdict]} {verdict}" for verdict in ("worse", "better", "same")]
    counts += [f"{part['verdicts']['wrong']} with wrong values"] if part["verdicts"]["wrong"] else []
    beyond = f" ({part['within_spread']} beyond the threshold, but within their spread)"
    shown = ", ".join(counts) + (beyond if part["within_spread"] else "")
    return f"{name}: {part['rows']} in both, B/A {part['mean_ratio']:.3f}: {shown}"


def _content(rows: Sequence[Row]) -> str:
    """Write the rows of one run by operation and algorithm."""
    counts = grouped(rows, lambda row: f"{row['op']} {row['algorithm']}")
    return ", ".join(f"{of[0]['op']} {of[0]['algorithm']} ({len(of)})" for of in counts)
