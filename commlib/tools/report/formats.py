"""Documents and rows as text for programs and for other people's tools: JSON, CSV, markdown."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from commlib.tools.report.table import Column

CODE = r"((?<!`)`(?!`)[^`\n]+`(?!`))"  # as markdown has it


def json_text(document: Mapping[str, Any]) -> str:
    """Write a document so that a person can read it and a tool can compare it: a line for a key, and for a row."""
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {_json(value)}" for key, value in document.items()) + "\n}"


def _json(value: Any) -> str:
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
    return json.dumps(value)


def csv_text(rows: Sequence[Mapping[str, Any]], fields: Mapping[str, str] | None = None) -> str:
    """Write RFC 4180: one header, one line for each row, nothing for what a row does not have.

    `fields` gives each column the place of its value in a row: "speedup.low" is in a part of it. None: all there are.
    """
    cells = [dict(flat(row)) for row in rows]
    fields = fields or {place: place for row in cells for place, value in row.items() if value is not None}
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(fields)
    writer.writerows([_plain(row.get(place)) for place in fields.values()] for row in cells)
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


def escaped(text: str) -> str:
    """Take their meaning in markdown from the characters of a text, but for what stands between backticks."""
    parts = re.split(CODE, text)  # every second one is code
    return "".join(part if at % 2 else _inert(part, ("\\", "*", "<", "#", "](")) for at, part in enumerate(parts))


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_inert(' '.join(cell.split()), ('|', '<', '](')) for cell in cells)} |"


def _inert(text: str, marks: Iterable[str]) -> str:
    """Put a backslash before the last character of these."""
    for mark in marks:
        text = text.replace(mark, f"{mark[:-1]}\\{mark[-1]}")
    return text


def rows_text(document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], form: str) -> str:
    if form == "csv":
        return csv_text(rows)
    if form == "md":
        cells = [{name: " ".join(str(value).split()) for name, value in flat(row)} for row in rows]
        names = dict.fromkeys(name for row in cells for name in row)
        columns = [Column(name, partial(_cell, name), left=True) for name in names]
        return "\n".join(markdown_table(columns, cells))
    return json_text(document)


def _cell(name: str, cells: Mapping[str, str]) -> str:
    return cells.get(name, "")
