"""The difference of two runs as a table for a terminal, and as markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commlib.cli.bench.difference import SIDES, Difference, Pair, Summary
from commlib.cli.bench.rows import label, median_us, title
from commlib.report.document import Row
from commlib.report.figures import fitted, size_text
from commlib.report.formats import markdown_table
from commlib.report.table import Column, Table, fold
from commlib.report.view import grouped

TIME = 8  # characters


def table(found: Difference, every: bool, width: int) -> list[str]:
    """Return the lines for a terminal."""
    shown = Table(COLUMNS, width)
    lines = fold([f"# A: {found.names[0]}", f"# B: {found.names[1]}", *_warned(found)], width)
    for pairs in _by_title(found.listed(every)):
        lines += [*shown.head(title(pairs[0].after)), *map(shown.line, pairs)]
    return [*lines, "#", *fold((f"# {line}" for line in summary(found)), width)]


def markdown(found: Difference, every: bool) -> list[str]:
    """Return the lines for a pull request."""
    lines = [f"`{found.names[0]}` (A) and `{found.names[1]}` (B)", ""]
    lines += [f"- **warning**: {warning}" for warning in found.warnings] + [""] * bool(found.warnings)
    for pairs in _by_title(found.listed(every)):
        table = markdown_table(COLUMNS, pairs)
        lines += [f"### {title(pairs[0].after)}", "", *(line.replace("*", "\\*") for line in table), ""]
    return lines + [f"- {line}" for line in summary(found)]


def summary(found: Difference) -> list[str]:
    """Return what to remember of a comparison."""
    lines = [f"rows by a threshold of {found.threshold * 100:.3g} %; B/A is the geometric mean"]
    lines += [_summed(name, part) for name, ours in SIDES if (part := found.summary(ours))]
    for name, rows in zip("AB", found.only, strict=True):
        lines += [f"only in {name}: {_content(rows)}"] if rows else []
    return lines


def _summed(name: str, part: Summary) -> str:
    counts = [f"{part.verdicts[verdict]} {verdict}" for verdict in ("worse", "better", "same")]
    counts += [f"{part.verdicts['wrong']} with wrong values"] if part.verdicts["wrong"] else []
    spread = f" ({part.within_spread} beyond the threshold, but within their spread)" if part.within_spread else ""
    return f"{name}: {part.rows} in both, B/A {part.mean_ratio:.3f}: {', '.join(counts)}{spread}"


def _warned(found: Difference) -> Iterator[str]:
    yield from (f"# warning: {warning}" for warning in found.warnings)


def _by_title(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    return grouped(pairs, lambda pair: title(pair.after))


def _verdict(pair: Pair) -> str:
    if pair.verdict == "wrong":
        return f"{pair.after['wrong']} wrong"
    return "" if pair.verdict == "same" else pair.verdict


COLUMNS = (
    Column("size", lambda pair: size_text(pair.after["size"]), 10, "(B)"),
    Column("algorithm", lambda pair: label(pair.after), 19, left=True),
    Column("form", lambda pair: "in" if pair.after["in_place"] else "out", 4, left=True, spare=2),
    Column("A", lambda pair: fitted(median_us(pair.before), TIME), TIME, "(us)", spare=1),
    Column("B", lambda pair: fitted(median_us(pair.after), TIME), TIME, "(us)", spare=1),
    Column("B/A", lambda pair: fitted(pair.ratio, 6), 6),
    Column("", _verdict, 7, left=True),
)


def _content(rows: Sequence[Row]) -> str:
    """Write the rows of one run by operation and algorithm."""
    counts: dict[str, int] = {}
    for row in rows:
        name = f"{row['op']} {row['algorithm']}"
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{name} ({count})" for name, count in counts.items())
