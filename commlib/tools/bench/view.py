"""How a result of `commlib bench` is shown: nccl-tests' table, markdown, CSV, JSON, pages, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

from commlib.tools.bench import result, table, which
from commlib.tools.report.chart import Panel
from commlib.tools.report.document import Row
from commlib.tools.report.formats import csv_text
from commlib.tools.report.table import Column, fold
from commlib.tools.report.view import View

PARTS = {"time_us": [field.name for field in fields(result.Times)], "speedup": ["over", "ratio", "low", "high"]}
ROW = dict.fromkeys(field.name for kind in (result.Skipped, result.Measured) for field in fields(kind))
# The places of what a row has: the same columns for every run.
COLUMNS = [[f"{name}.{part}" for part in PARTS.get(name, ())] or [name] for name in [*ROW, "speedup"]]
CSV = {place: place for of_name in COLUMNS for place in of_name}


class BenchView(View):
    """nccl-tests' table, one line per algorithm and form."""

    forms: ClassVar = ("table", "page", "md", "csv", "json")

    def columns(self) -> list[Column]:
        return list(table.columns(self.document["config"]))

    def opening(self) -> list[str]:
        return table.opening(self.document)

    def closing(self) -> list[str]:
        return table.closing(self.document)

    def series(self, row: Row) -> tuple[Any, ...]:
        return result.series_of(row)

    def title(self, rows: Sequence[Row]) -> str:
        return result.title(rows[0])

    def items(self, rows: Sequence[Row]) -> list[Row]:
        return result.with_speedups(result.measured(rows), self.document["config"]["baseline"])

    def csv(self) -> str:
        return csv_text(result.with_speedups(self.rows(), self.document["config"]["baseline"]), CSV)

    def page(self) -> str:
        return "\n".join([*fold(self.opening(), self.width), *self.page_rest()])

    def page_rest(self) -> list[str]:
        return which.lines(self.document, self.width)

    def where(self, path: Path | None, picture: Path | None) -> list[str]:
        return which.where(path, picture, self.width)

    def panels(self) -> list[list[Panel]]:
        return which.panels(self.document)

    def chart_title(self) -> str:
        return which.chart_title(self.document)
