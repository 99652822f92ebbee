"""View: how the documents of one command are shown, while they grow and when they are read again."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from commlib.tools.report.chart import Rows, draw
from commlib.tools.report.document import Row
from commlib.tools.report.formats import Column, Table, csv_text, escaped, fold, json_text, markdown_table

Item = TypeVar("Item")


class View(ABC):
    """A command says what stands above and below, which rows share a head, and the columns of a line."""

    forms: ClassVar[Sequence[str]] = ("table", "md", "csv", "json")  # each is the method of that name

    def __init__(self, document: dict[str, Any], width: int | None = None) -> None:
        self.document = document
        self.width = terminal_columns() if width is None else width
        self.layout = Table(self.columns(), self.width)

    @abstractmethod
    def columns(self) -> Sequence[Column]:
        """Return the columns of an item."""

    @abstractmethod
    def title(self, rows: Sequence[Row]) -> str:
        """Name a series."""

    def opening(self) -> list[str]:
        """Return the # lines above the rows; the document may have none yet."""
        return []

    def closing(self) -> list[str]:
        """Return the # lines below the rows: whether that is all."""
        return unfinished(self.document)

    def series(self, row: Row) -> Hashable:
        """Return what the rows below one head share: their title."""
        return self.title([row])

    def items(self, rows: Sequence[Row]) -> Sequence[Any]:
        return rows

    def head(self, rows: Sequence[Row]) -> list[str]:
        return self.layout.head(self.title(rows))

    def body(self, rows: Sequence[Row]) -> list[str]:
        return [self.layout.line(item) for item in self.items(rows)]

    def ending(self) -> list[str]:
        return fold(self.closing(), self.width)

    def page_rest(self) -> list[str]:
        """Return what a run prints in the end, below the opening, where its form is a page."""
        return self.below()

    def below(self) -> list[str]:
        """Return what a run prints below the opening."""
        tables = (line for rows in self.by_series() for line in (*self.head(rows), *self.body(rows)))
        return [*tables, *self.ending()]

    def by_series(self) -> Iterator[list[Row]]:
        return grouped(self.document["rows"], self.series)

    def render(self, form: str) -> str:
        text: str = getattr(self, form)()
        return text

    def table(self) -> str:
        """Return the whole of what a run prints."""
        return "\n".join([*fold(self.opening(), self.width), *self.below()])

    def md(self) -> str:
        """Return a table below each heading, and what stands above and below as a list."""
        parts = [] if self.document.get("complete", True) else [escaped(f"Not complete: {self.document['ended']}.")]
        for rows in self.by_series():
            table = markdown_table(self.columns(), self.items(rows))
            parts += [f"### {escaped(self.title(rows))}", "\n".join(table)]
        notes = (line.removeprefix("#").strip() for line in (*self.opening(), *self.closing()))
        return "\n\n".join([*parts, "\n".join(f"- {escaped(note)}" for note in notes if note)])

    def csv(self) -> str:
        return csv_text([item for rows in self.by_series() for item in self.items(rows)])

    def json(self) -> str:
        return json_text(self.document)

    def panels(self) -> Rows:
        return []

    def chart_title(self) -> str:
        return self.title(self.document["rows"])

    def plot(self, path: Path) -> None:
        draw(path, self.chart_title(), self.panels())


def terminal_columns() -> int:
    """Return the width of the terminal; of a pipe or a file one into which every column fits."""
    return shutil.get_terminal_size((160, 24)).columns


def unfinished(document: Mapping[str, Any]) -> list[str]:
    """Return the last # line of a run that did not come to its end."""
    return [] if document["complete"] else [f"# {document['ended'] or 'ended early'}: not complete"]


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> Iterator[list[Item]]:
    """Yield the items that share a key, in the order in which the keys come first."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    yield from groups.values()
