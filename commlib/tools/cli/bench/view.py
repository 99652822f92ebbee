"""How a document of `commlib bench` is shown: the table, OSU's layout, markdown, CSV, JSON, HTML, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from commlib.tools.bench import osu, page, which
from commlib.tools.bench.rows import measured, series_of, title
from commlib.tools.cli.bench import columns, notes
from commlib.tools.cli.bench.columns import Way
from commlib.tools.report.chart import Panel
from commlib.tools.report.document import Row
from commlib.tools.report.formats import csv_text
from commlib.tools.report.table import Column, fold
from commlib.tools.report.view import View, grouped, unfinished

WIDE = 120  # columns from which both forms fit on a line


class BenchView(View):
    """nccl-tests' table, one line per algorithm."""

    forms: ClassVar = ("table", "page", "osu", "md", "csv", "json", "html")

    @property
    def abreast(self) -> bool:
        """Say whether both forms of a call stand on a line."""
        return self.width >= WIDE and not self.document["config"].get("percentiles")

    def page(self) -> str:
        """Return what a stranger reads in one go."""
        return "\n".join(page.lines(self.document, self.width))

    def where(self, path: Path | None, picture: Path | None) -> list[str]:
        """Say below a page where the rest is."""
        return page.where(path, picture, self.width)

    def layouts(self) -> list[list[Column]]:
        """Return the columns of a way, or of a row where the terminal is narrow."""
        config = self.document["config"]
        return columns.wide(config) if self.abreast else [columns.narrow(config)]

    def columns(self) -> list[Column]:
        """Return those of markdown."""
        return columns.markdown(self.document["config"]["baseline"])

    def opening(self) -> list[str]:
        """Say what is measured, and where."""
        return notes.opening(self.document)

    def closing(self) -> list[str]:
        """Say what follows from it."""
        return notes.closing(self.document)

    def series(self, row: Row) -> tuple[Any, ...]:
        """Return operation, type, reduction and mode."""
        return series_of(row)

    def title(self, rows: Sequence[Row]) -> str:
        """Name operation, type and reduction."""
        return title(rows[0])

    def items(self, rows: Sequence[Row]) -> list[Way]:
        """Return the ways of whole calls."""
        calls = grouped(measured(rows), lambda row: row["size"])
        ways = (way for call in calls for way in grouped(call, lambda row: (row["algorithm"], row["placement"])))
        return [{row["in_place"]: row for row in way} for way in ways]

    def head(self, rows: Sequence[Row]) -> list[str]:
        """Return what stands above the first call of a series."""
        graph = ", CUDA graph" if rows[0]["mode"] == "graph" else ""
        return self.layout.head(f"{rows[0]['op']}{graph}" if self.abreast else self.title(rows))

    def body(self, rows: Sequence[Row]) -> list[str]:
        """Return the lines of whole calls."""
        ways = self.items(rows)
        items = ways if self.abreast else [way[form] for way in ways for form in sorted(way)]
        return [self.layout.line(item) for item in items]

    def panels(self) -> list[list[Panel]]:
        """Return the curves."""
        return which.panels(self.document)

    def chart_title(self) -> str:
        """Name collective and machine."""
        return which.chart_title(self.document)

    def csv(self) -> str:
        """Return a line for each row."""
        return csv_text(self.rows(), columns.CSV)

    def html(self) -> str:
        """Return the page that says which library is the fastest at which size."""
        return which.page(self.document)

    def osu(self) -> str:
        """Return OSU's columns, one table for each algorithm in each form."""
        lines = fold(self.opening(), self.width)
        for series in self.by_series():
            for way in grouped(measured(series), lambda row: (row["algorithm"], row["placement"], row["in_place"])):
                lines += ["", *fold(osu.head(way[0]), self.width), *(osu.line(row)[: self.width] for row in way)]
        return "\n".join([*lines, *unfinished(self.document)])
