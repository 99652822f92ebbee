"""Columns of a table on a terminal: which of them fit, their header, and a line of cells."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True)
class Column:
    """One column; of those that do not fit, the one with the highest `spare` goes first."""

    key: str
    name: str
    width: int
    unit: str = ""
    group: str = ""  # stands over neighbours that share it
    left: bool = False
    spare: int = 0

    def cell(self, text: str) -> str:
        """Cut and align a text."""
        text = text if len(text) <= self.width else text[: self.width - 1] + "…"
        return f"{text:<{self.width}}" if self.left else f"{text:>{self.width}}"


class Columns:
    """Columns side by side, no wider than the terminal."""

    def __init__(self, columns: Sequence[Column], width: int) -> None:
        kept = list(columns)
        while _breadth(kept) > width and len(kept) > 1:
            kept.remove(max(kept, key=lambda column: column.spare))
        self.columns, self.width = tuple(kept), width

    def head(self) -> list[str]:
        """Return the header: groups if there are any, names, units if there are any."""
        groups = [(group, _breadth(list(of_group))) for group, of_group in groupby(self.columns, lambda c: c.group)]
        lines = [" ".join(f"{group:^{breadth}}" for group, breadth in groups)]
        lines += [self._joined({column.key: column.name for column in self.columns})]
        lines += [self._joined({column.key: column.unit for column in self.columns})]
        return [("#" + line[1:]).rstrip()[: self.width] for line in lines if line.strip()]

    def line(self, cells: Mapping[str, str]) -> str:
        """Return a line; cells without a column are left out."""
        return self._joined(cells).rstrip()

    def _joined(self, cells: Mapping[str, str]) -> str:
        return " ".join(column.cell(cells.get(column.key, "-")) for column in self.columns)[: self.width]


def _breadth(columns: Sequence[Column]) -> int:
    return sum(column.width + 1 for column in columns) - 1


def fold(lines: Iterable[str], width: int) -> list[str]:
    """Break # lines that are wider than the terminal; what is broken off is indented."""
    room = max(width, 8)
    pieces = (textwrap.wrap(line, room, subsequent_indent="#   ", break_on_hyphens=False) for line in lines)
    return [piece[:width] for of_line in pieces for piece in of_line]
