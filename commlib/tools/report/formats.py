"""Documents and rows as text for programs and for other people's tools: JSON, CSV, markdown."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from commlib.tools.report.table import Column

CELL = r"[|<]|\]\("  # what is escaped in tables


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
