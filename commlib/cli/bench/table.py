"""The table of `commlib bench`: nccl-tests' columns, one line per algorithm, for wide and narrow terminals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from commlib.cli.bench.columns import Column, Columns, fold
from commlib.cli.bench.notes import closing, opening
from commlib.cli.bench.rows import (
    PLACES,
    TYPE_WIDTH,
    Row,
    about,
    by_way,
    fitted,
    label,
    measured,
    median_us,
    percent_text,
    ratio_decimals,
    ratio_text,
    size_text,
    title,
    type_text,
    wrong_text,
)

__all__ = ["Table", "closing", "fold", "opening"]

WIDE = 120  # columns from which both forms fit on a line
TIME, WIDTH, WRONG = 6, 5, 6  # characters of a time, a bandwidth, a number of wrong elements
ALGORITHM = 19  # lsa_ll128_exchange and its star
MOST_DIGITS, FEW_DIGITS = 10, 8  # of a size in bytes; where they do not do, 268435456 is 256M


class Table:
    """Turns rows into lines of at most `width` characters."""

    def __init__(self, width: int, config: dict[str, Any]) -> None:
        self.wide = width >= WIDE
        baseline = config.get("baseline")
        layouts = _wide(config, baseline) if self.wide else [_narrow(baseline)]
        # The first layout that keeps all of its columns; the last one drops what does not fit.
        fits = (columns for columns in layouts if len(Columns(columns, width).columns) == len(columns))
        self.columns = Columns(next(fits, layouts[-1]), width)
        self.digits = self.columns.columns[0].width
        self.full = self.wide and any(column.key == "in.wrong" for column in self.columns.columns)

    def head(self, rows: Sequence[Row]) -> list[str]:
        """Return what stands above the first call of a series."""
        first = rows[0]
        graph = ", CUDA graph" if first["mode"] == "graph" else ""
        name = f"# {first['op']}{graph}" if self.wide else f"# {title(first)}"
        return ["#", name[: self.columns.width], *self.columns.head()]

    def body(self, rows: Sequence[Row]) -> list[str]:
        """Return the lines of one call."""
        return [line for forms in by_way(measured(rows)) for line in self._lines(forms)]

    def _lines(self, forms: dict[bool, Row]) -> Iterator[str]:
        if self.wide:
            yield self.columns.line(self._both(forms))
            return
        for in_place in sorted(forms):
            row = forms[in_place]
            cells = {"size": _short(row["size"], self.digits), "form": "in" if in_place else "out"}
            yield self.columns.line({**cells, **self._shared(row), **_figures(row)})

    def _both(self, forms: dict[bool, Row]) -> dict[str, str]:
        first = forms[min(forms)]
        cells = {
            "size": _short(first["size"], self.digits),
            "count": _short(first["count"], self.digits),
            "type": type_text(first["type"]),
            "redop": first["redop"] or "none",
            "root": str(-1 if first["root"] is None else first["root"]),
            **self._shared(first),
            "wrong": _sum_wrong(list(forms.values())),
        }
        for in_place, row in forms.items():
            side = "in" if in_place else "out"
            cells |= {f"{side}.{key}": text for key, text in _figures(row).items()}
        return cells

    def _shared(self, row: Row) -> dict[str, str]:
        interval = _plus_minus if self.wide and not self.full else _between
        return {"algorithm": label(row), "limit": percent_text(row["of_limit"]), "speedup": interval(row["speedup"])}


def _wide(config: dict[str, Any], baseline: str | None) -> list[list[Column]]:
    """Return nccl-tests' columns; where they leave no room, with one #wrong for both forms and a shorter interval."""
    longest = max(6, len(str(max(config["sizes"], default=0))))
    halves = [column for in_place in PLACES for column in _half(in_place)]
    merged = [column for column in halves if not column.key.endswith(".wrong")]
    merged += [Column("wrong", "#wrong", WRONG), *_against(baseline, 11)]
    full, few = _lead(min(longest, MOST_DIGITS)), _lead(min(longest, FEW_DIGITS))
    return [[*full, *halves, *_against(baseline, 16)], [*full, *merged], [*few, *merged]]


def _lead(digits: int) -> list[Column]:
    return [
        Column("size", "size", digits, "(B)"),
        Column("count", "count", digits, "(elts)"),
        Column("type", "type", TYPE_WIDTH),
        Column("redop", "redop", 5),
        Column("root", "root", 4),
        Column("algorithm", "algorithm", ALGORITHM, left=True),
    ]


def _half(in_place: bool) -> list[Column]:
    side, group = ("in", "in-place") if in_place else ("out", "out-of-place")
    return [
        Column(f"{side}.time", "time", TIME, "(us)", group),
        Column(f"{side}.algbw", "algbw", WIDTH, "GB/s", group),
        Column(f"{side}.busbw", "busbw", WIDTH, "GB/s", group),
        Column(f"{side}.wrong", "#wrong", WRONG, "", group),
    ]


def _narrow(baseline: str | None) -> list[Column]:
    return [
        Column("size", "size", FEW_DIGITS, "(B)"),
        Column("algorithm", "algorithm", ALGORITHM, left=True),
        Column("form", "form", 4, left=True, spare=2),
        Column("time", "time", TIME, "(us)"),
        Column("busbw", "busbw", WIDTH, "GB/s", spare=1),
        *_against(None, 0),
        Column("wrong", "#wrong", WRONG, spare=3),
        *_against(baseline, 16)[1:],
    ]


def _against(baseline: str | None, width: int) -> list[Column]:
    """Return the columns that compare a row: with the limit, and with the baseline if there is one."""
    limit = Column("limit", "%lim", 4, spare=5)
    return [limit, *([Column("speedup", "speed-up", width, f"x {baseline}", spare=4)] if baseline else [])]


def _figures(row: Row) -> dict[str, str]:
    return {
        "time": fitted(median_us(row), TIME),
        "algbw": fitted(row["algbw"], WIDTH),
        "busbw": fitted(row["busbw"], WIDTH),
        "wrong": wrong_text(row),
    }


def _sum_wrong(rows: Sequence[Row]) -> str:
    counts = [row["wrong"] for row in rows if row["wrong"] is not None]
    return wrong_text({"wrong": sum(counts) if counts else None})


def _short(number: int, digits: int) -> str:
    texts = (str(number), size_text(number), about(number))
    return next((text for text in texts if len(text) <= digits), texts[-1])


def _between(speedup: dict[str, Any] | None) -> str:
    """Write 2.31 [2.20–2.41]."""
    if speedup is None:
        return "-"
    low, high = ratio_text(speedup["low"]), ratio_text(speedup["high"])
    return f"{ratio_text(speedup['ratio'])} [{low}–{high}]"


def _plus_minus(speedup: dict[str, Any] | None) -> str:
    """Write 2.31x ±0.05: the farther end of the interval."""
    if speedup is None:
        return "-"
    ratio = speedup["ratio"]
    error = max(ratio - speedup["low"], speedup["high"] - ratio, 0.0)
    return f"{ratio_text(ratio)}x ±{error:.{ratio_decimals(ratio)}f}"
