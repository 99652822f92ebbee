"""The difference of two runs as a table for a terminal, and as markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commlib.cli.bench.columns import Column, Columns, fold
from commlib.cli.bench.difference import SIDES, Difference, Pair, Summary
from commlib.cli.bench.rows import Row, fitted, label, median_us, size_text, title

TIME = 8  # characters


def table(found: Difference, every: bool, width: int) -> list[str]:
    """Return the lines for a terminal."""
    columns = Columns(
        [
            Column("size", "size", 10, "(B)"),
            Column("algorithm", "algorithm", 19, left=True),
            Column("form", "form", 4, left=True, spare=2),
            Column("a", "A", TIME, "(us)", spare=1),
            Column("b", "B", TIME, "(us)", spare=1),
            Column("ratio", "B/A", 6),
            Column("verdict", "", 7, left=True),
        ],
        width,
    )
    lines = fold([f"# A: {found.names[0]}", f"# B: {found.names[1]}", *_warned(found)], width)
    for pairs in _by_title(found.listed(every)):
        lines += ["#", f"# {title(pairs[0].after)}"[:width], *columns.head()]
        lines += [columns.line(_cells(pair)) for pair in pairs]
    return [*lines, "#", *fold((f"# {line}" for line in summary(found)), width)]


def markdown(found: Difference, every: bool) -> list[str]:
    """Return the lines for a pull request."""
    lines = [f"`{found.names[0]}` (A) and `{found.names[1]}` (B)", ""]
    lines += [f"- **warning**: {warning}" for warning in found.warnings] + [""] * bool(found.warnings)
    for pairs in _by_title(found.listed(every)):
        lines += [f"### {title(pairs[0].after)}", "", "| size | algorithm | form | A, µs | B, µs | B/A | |"]
        lines += ["|---:|:---|:---|---:|---:|---:|:---|"]
        lines += [f"| {' | '.join(_cells(pair).values())} |".replace("*", "\\*") for pair in pairs] + [""]
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
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(title(pair.after), []).append(pair)
    yield from groups.values()


def _cells(pair: Pair) -> dict[str, str]:
    row = pair.after
    return {
        "size": size_text(row["size"]),
        "algorithm": label(row),
        "form": "in" if row["in_place"] else "out",
        "a": fitted(median_us(pair.before), TIME),
        "b": fitted(median_us(row), TIME),
        "ratio": fitted(pair.ratio, 6),
        "verdict": f"{row['wrong']} wrong"
        if pair.verdict == "wrong"
        else ""
        if pair.verdict == "same"
        else pair.verdict,
    }


def _content(rows: Sequence[Row]) -> str:
    """Write the rows of one run by operation and algorithm."""
    counts: dict[str, int] = {}
    for row in rows:
        name = f"{row['op']} {row['algorithm']}"
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{name} ({count})" for name, count in counts.items())
