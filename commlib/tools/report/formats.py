"""How figures are written, rows as tables of a terminal and of Markdown, and as CSV, and documents as JSON."""

from __future__ import annotations

import csv
import io
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commlib.tools.timing import Measurement

MIN_BLOCKS = 3  # of fewer, no interval can be had
_BINARY = (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10))
MIN_COLUMNS = 40
CELL = r"[|<]|\]\("  # what is escaped in tables


@dataclass(frozen=True)
class Column:
    """One column: its name and unit, and `read`, which writes an item's cell."""

    name: str
    read: Callable[[Any], str]
    width: int = 0  # of a terminal's column; markdown has no need of it
    unit: str = ""
    left: bool = False
    spare: int = 0  # of the columns that do not fit, the one with the highest goes first

    def fit(self, text: str) -> str:
        text = text if len(text) <= self.width else text[: self.width - 1] + "…"
        return f"{text:<{self.width}}" if self.left else f"{text:>{self.width}}"


class Table:
    """Columns side by side, no wider than the terminal."""

    def __init__(self, columns: Sequence[Column], width: int) -> None:
        fitting = list(columns)
        while _breadth(fitting) > width and len(fitting) > 1:
            fitting.remove(max(fitting, key=lambda column: column.spare))
        self.columns, self.width = fitting, width

    def head(self, title: str) -> list[str]:
        """Return what stands above the lines: the title, names, and units if there are any."""
        lines = [self._joined(column.name for column in self.columns)]
        lines += [self._joined(column.unit for column in self.columns)]
        shown = [("#" + line[1:]).rstrip()[: self.width] for line in lines if line.strip()]
        return ["#", f"# {title}"[: self.width], *shown]

    def line(self, item: Any) -> str:
        return self._joined(column.read(item) for column in self.columns).rstrip()

    def _joined(self, cells: Iterable[str]) -> str:
        cut = (column.fit(cell) for column, cell in zip(self.columns, cells, strict=True))
        return " ".join(cut)[: self.width]


def _breadth(columns: Sequence[Column]) -> int:
    return sum(column.width + 1 for column in columns) - 1


def fold(lines: Iterable[str], width: int, indent: str = "#   ") -> list[str]:
    """Break lines that are wider than the terminal, but no path; what is broken off is indented."""
    wrapper = textwrap.TextWrapper(
        max(width, MIN_COLUMNS), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [piece for line in lines for piece in wrapper.wrap(line)]


def json_text(document: Mapping[str, Any]) -> str:
    """Write a document so that a person can read it and a tool can compare it: a line for a key, and for a row."""
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {_json(value)}" for key, value in document.items()) + "\n}"


def _json(value: Any) -> str:
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
    return json.dumps(value)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write RFC 4180: one header, one line for each row, nothing for what a row does not have."""
    cells = [dict(flat(row)) for row in rows]
    places = dict.fromkeys(place for row in cells for place, value in row.items() if value is not None)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(places)
    writer.writerows([_plain(row.get(place)) for place in places] for row in cells)
    return text.getvalue().removesuffix("\r\n")


def flat(row: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the place and value of all that a row and its parts have."""
    for key, value in row.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split())  # a row is a line, also for readers that know no quotes
    return str(value).lower() if isinstance(value, bool) else value


def markdown_table(columns: Sequence[Column], items: Iterable[Any]) -> list[str]:
    names = [f"{column.name}, {column.unit.strip('()')}" if column.unit else column.name for column in columns]
    sides = [":---" if column.left else "---:" for column in columns]
    return [_cells(names), _cells(sides), *(_cells([column.read(item) for column in columns]) for item in items)]


def escaped(text: str, marks: str = r"[\\`*<#]|\]\(") -> str:
    """Put a backslash before the characters that mean something in markdown."""
    return re.sub(marks, r"\\\g<0>", text)


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(escaped(' '.join(cell.split()), CELL) for cell in cells)} |"


# --- figures of blocks, and how they are written


def size_text(num_bytes: float) -> str:
    """Write a size as the options take it: 4096 is 4K; what is no whole number of units is written in bytes."""
    for unit, scale in _BINARY:
        if num_bytes >= scale and num_bytes % scale == 0:
            return f"{int(num_bytes) // scale}{unit}"
    return f"{num_bytes:.0f}"


def about(num_bytes: float) -> str:
    """Write a size that was computed: to three digits."""
    for unit, scale in _BINARY:
        if num_bytes >= scale:
            count = num_bytes / scale
            return f"{count:.0f}{unit}" if count > 999 else f"{count:.3g}{unit}"
    return f"{num_bytes:.0f}"


def fitted(value: float | None, width: int) -> str:
    """Write a figure with about four digits, as the rest is noise, and fewer where they do not fit."""
    if value is None:
        return "-"
    for below, decimals in ((100, 2), (10_000, 1), (float("inf"), 0)):
        text = f"{value:.{decimals}f}"
        if value < below and len(text) <= width:
            return text
    return f"{value:.2e}".replace("e+0", "e").replace("e+", "e")


def percent_text(fraction: float | None) -> str:
    """Write a share in percent, without the sign."""
    return "-" if fraction is None else f"{fraction * 100:.1f}" if fraction < 0.0995 else f"{fraction * 100:.0f}"


def ratio_text(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}" if value < 9999.5 else f"{value / 1000:.0f}k"


def interval_text(ratio: dict[str, Any] | None) -> str:
    """Write a ratio and its interval: 2.31 [2.20–2.41]."""
    if ratio is None:
        return "-"
    return f"{ratio_text(ratio['ratio'])} [{ratio_text(ratio['low'])}–{ratio_text(ratio['high'])}]"


def percentiles_us(measured: Measurement, percents: Sequence[int] = (0, 10, 50, 90, 100)) -> dict[str, float]:
    return {f"p{p}": round(measured.percentile_s(p) * 1e6, 4) for p in percents}


def ratio_of(above_us: Mapping[str, float], below_us: Mapping[str, float]) -> dict[str, float]:
    """Return how many times as long `above` takes: of medians, and of the middle four fifths of blocks."""
    ends = {"ratio": ("p50", "p50"), "low": ("p10", "p90"), "high": ("p90", "p10")}
    return {name: round(above_us[above] / below_us[below], 4) for name, (above, below) in ends.items()}
