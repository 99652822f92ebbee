"""Rows as tables of a terminal and of Markdown, and as CSV; documents as JSON."""

from __future__ import annotations

import csv
import io
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
