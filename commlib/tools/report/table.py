"""Tables on a terminal: columns that say how an item is read, of which those that fit are shown."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MIN_COLUMNS = 40


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
