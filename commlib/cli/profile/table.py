"""The table of `commlib profile`: one line for each candidate, and patterns side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from commlib.cli.profile.case import OURS
from commlib.cli.profile.document import SERIES, Row
from commlib.cli.profile.notes import closing, opening, title
from commlib.report.figures import fitted, percent_text, ratio_text
from commlib.report.table import Column, fold
from commlib.report.table import Table as Columns

N, CANDIDATE, TIME, RATE, SHARE, RATIO = 6, 19, 7, 6, 5, 17  # characters


class Table:
    """Turns rows into lines of at most `width` characters."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.columns = Columns(
            [
                Column("n", itemgetter("n"), N),
                Column("dim", itemgetter("dim"), 5, spare=8),
                Column("pattern", itemgetter("pattern"), 10, left=True, spare=9),
                Column("candidate", itemgetter("candidate"), CANDIDATE, left=True),
                Column("time", itemgetter("time"), TIME, "(us)"),
                Column("rate", itemgetter("rate"), RATE, "GB/s"),
                Column("%copy", itemgetter("copy"), SHARE),
                Column("host", itemgetter("host"), RATE, "(us)", spare=6),
                Column("wall", itemgetter("wall"), RATE, "(us)", spare=5),
                Column("ratio", itemgetter("ratio"), RATIO, "to ours", spare=4),
            ],
            width,
        )

    def head(self, row: Row) -> list[str]:
        """Return what stands above the first case of a series."""
        return self.columns.head(title(row))

    def body(self, rows: Sequence[Row]) -> list[str]:
        """Return the lines of one case: whoever has a figure."""
        return [self.columns.line(_cells(row)) for row in rows if row["time_us"] or row["eager"]]


def render(document: dict[str, Any], width: int) -> str:
    """Return the whole of what a run prints."""
    table = Table(width)
    lines = fold(opening(document), width)
    for _, of_series in groupby(document["rows"], series):
        rows = list(of_series)
        lines += [*table.head(rows[0]), *table.body(rows)]
    return "\n".join([*lines, *ending(document, width)])


def ending(document: dict[str, Any], width: int) -> list[str]:
    """Return what stands below the rows."""
    beside = side_by_side(document["rows"], width) if document["config"]["compare_patterns"] else []
    return [*beside, *fold(closing(document), width)]


def series(row: Row) -> tuple[Any, ...]:
    """Return what rows below one head share."""
    return tuple(row[key] for key in SERIES)


def side_by_side(rows: Sequence[Row], width: int) -> list[str]:
    """Return time and share of each pattern beside each other, for each candidate of each problem."""
    problems: dict[tuple[Any, ...], dict[tuple[int, str], dict[str, Row]]] = {}
    for row in rows:
        if row["time_us"]:
            lines = problems.setdefault(tuple(row[key] for key in SERIES if key != "pattern"), {})
            lines.setdefault((row["n"], _label(row)), {})[row["pattern"]] = row
    return [line for lines in problems.values() for line in _beside(lines, width)]


def _beside(lines: dict[tuple[int, str], dict[str, Row]], width: int) -> Iterator[str]:
    patterns = list(dict.fromkeys(pattern for found in lines.values() for pattern in found))
    columns = [Column("n", itemgetter("n"), N), Column("candidate", itemgetter("candidate"), CANDIDATE, left=True)]
    for pattern in patterns:
        columns += [Column("time", itemgetter(f"{pattern}.time"), TIME, "(us)", pattern)]
        columns += [Column("%copy", itemgetter(f"{pattern}.copy"), SHARE, "", pattern)]
    table = Columns(columns, width)
    first = next(iter(next(iter(lines.values())).values()))
    yield from table.head(title(first, pattern=""))
    for (n, candidate), found in lines.items():
        cells = defaultdict(lambda: "-", n=str(n), candidate=candidate)
        for pattern, row in found.items():
            cells |= {f"{pattern}.time": _time(row), f"{pattern}.copy": percent_text(row["of_copy"])}
        yield table.line(cells)


def _cells(row: Row) -> dict[str, str]:
    eager = row["eager"] or {"wall_us": None, "host_us": None}
    return {
        "n": str(row["n"]),
        "dim": str(row["dim"]),
        "pattern": row["pattern"],
        "candidate": _label(row),
        "time": _time(row),
        "rate": "-" if row["gbps"] is None else fitted(row["gbps"], RATE),
        "copy": percent_text(row["of_copy"]),
        "host": "-" if eager["host_us"] is None else fitted(eager["host_us"], RATE),
        "wall": fitted(eager["wall_us"]["p50"], RATE) if eager["wall_us"] else "-",
        "ratio": "WRONG" if row["wrong"] else _ratio(row["versus"]) if row["versus"] else "-",
    }


def _label(row: Row) -> str:
    return str(row["candidate"]) + ("*" if row["role"] == OURS else "")


def _time(row: Row) -> str:
    return fitted(row["time_us"]["p50"], TIME) if row["time_us"] else "-"


def _ratio(versus: Row) -> str:
    """Write 2.31 [2.20–2.41]."""
    return f"{ratio_text(versus['ratio'])} [{ratio_text(versus['low'])}–{ratio_text(versus['high'])}]"
