"""View: how the documents of one command are shown, while they grow and when they are read again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from commlib.report.document import Row
from commlib.report.formats import csv_text, json_text, leaves, markdown_list, markdown_table
from commlib.report.table import Column, Table, fold

Item = TypeVar("Item")


class View(ABC):
    """A command says what stands above and below, what rows share a head, and how a row is a line."""

    forms: ClassVar[Mapping[str, Callable[[Any], str]]]  # name → what renders a view; "table" and "json" among them

    def __init__(self, document: dict[str, Any], width: int) -> None:
        self.document, self.width = document, width

    @abstractmethod
    def opening(self) -> list[str]:
        """Return the # lines above the rows; the document may have none yet."""

    @abstractmethod
    def closing(self) -> list[str]:
        """Return the # lines below the rows."""

    @abstractmethod
    def series(self, row: Row) -> Hashable:
        """Return what the rows below one head share."""

    @abstractmethod
    def head(self, rows: Sequence[Row]) -> list[str]:
        """Return what stands above the rows of a series."""

    @abstractmethod
    def body(self, rows: Sequence[Row]) -> list[str]:
        """Return the lines of some rows of a series."""

    def plot(self, path: Path) -> None:
        """Draw the document, if the command has pictures."""
        raise NotImplementedError(f"{type(self).__name__} has no picture for {path}")

    def rows(self) -> list[Row]:
        """Return the rows."""
        found: list[Row] = self.document["rows"]
        return found

    def by_series(self) -> Iterator[list[Row]]:
        """Yield the rows of each series."""
        return grouped(self.rows(), self.series)

    def text(self) -> str:
        """Return the whole of what a run prints."""
        lines = fold(self.opening(), self.width)
        for rows in self.by_series():
            lines += [*self.head(rows), *self.body(rows)]
        return "\n".join([*lines, *self.ending()])

    def ending(self) -> list[str]:
        """Return what a run prints below the rows."""
        return fold(self.closing(), self.width)

    def render(self, form: str) -> str:
        """Return the document as one of the forms, without a newline at the end."""
        return self.forms[form](self)


def as_json(view: View) -> str:
    """Return the document itself."""
    return json_text(view.document)


class TableView(View):
    """A view with one layout: the same columns on a terminal and in markdown, and all values of a row in CSV."""

    def __init__(self, document: dict[str, Any], width: int) -> None:
        super().__init__(document, width)
        self.table = Table(self.columns(), width)

    @abstractmethod
    def columns(self) -> Sequence[Column]:
        """Return the columns of an item."""

    @abstractmethod
    def title(self, rows: Sequence[Row]) -> str:
        """Name a series."""

    def opening(self) -> list[str]:
        """Say nothing above the rows."""
        return []

    def closing(self) -> list[str]:
        """Say below the rows whether that is all."""
        return unfinished(self.document)

    def series(self, row: Row) -> Hashable:
        """Return what all rows share."""
        return ""

    def items(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return what has a line: the rows."""
        return rows

    def head(self, rows: Sequence[Row]) -> list[str]:
        """Return title, names and units."""
        return self.table.head(self.title(rows))

    def body(self, rows: Sequence[Row]) -> list[str]:
        """Return the lines of some rows of a series."""
        return [self.table.line(item) for item in self.items(rows)]

    def markdown(self) -> str:
        """Return a list of what is measured, a table for each series, and a list of what follows."""
        lines = markdown_list(self.opening())
        for rows in self.by_series():
            lines += ["", f"### {self.title(rows)}", "", *markdown_table(self.columns(), self.items(rows))]
        return "\n".join([*lines, "", *markdown_list(self.closing())])

    def csv(self) -> str:
        """Return a line for each item, with all that it has."""
        items = [item for rows in self.by_series() for item in self.items(rows)]
        return csv_text({leaf: leaf for leaf in leaves(items)}, items)

    forms: ClassVar = {"table": View.text, "md": markdown, "csv": csv, "json": as_json}


def caption(document: Mapping[str, Any], *words: str) -> str:
    """Return what stands above a picture."""
    ended = [] if document["complete"] else ["not complete"]
    return ", ".join([f"commlib {document['fingerprint']['commlib']}", *words, *ended])


def unfinished(document: Mapping[str, Any]) -> list[str]:
    """Return the last # line of a run that did not come to its end."""
    return [] if document["complete"] else [f"# {document['ended'] or 'ended early'}: not complete"]


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> Iterator[list[Item]]:
    """Yield the items that share a key, in the order in which the keys come first."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    yield from groups.values()
