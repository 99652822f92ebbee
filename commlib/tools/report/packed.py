"""Results that are kept: documents of any kind in one file, a short line for a row: what rows share is written once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from commlib.tools.report.document import Row
from commlib.tools.report.formats import flat
from commlib.tools.report.view import grouped

FEW = 8  # rows of a table on average, at least


def packed(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a file; within a document, rows that share their words come to stand together."""
    return "[\n" + ",\n".join(_document(document) for document in documents) + "\n]"


def unpacked(content: Any) -> list[Any]:
    documents = content if isinstance(content, list) and all(isinstance(part, dict) for part in content) else [content]
    return [_whole(document) for document in documents]


def _document(document: Mapping[str, Any]) -> str:
    parts = [f' "{key}": {json.dumps(value)}' for key, value in document.items() if key != "rows"]
    rows = [dict(flat(row)) for row in document["rows"]]
    tables = _sorted(rows)
    parts.append(' "rows": {"tables": [\n' + ",\n".join(map(_table, tables)) + "\n ]}")
    return "{\n" + ",\n".join(parts) + "\n}"


def _sorted(rows: Sequence[Row]) -> list[list[Row]]:
    """Divide rows by their columns of words, one after the other, as long as enough rows stay together."""
    tables = list(grouped(rows, tuple))
    for column in dict.fromkeys(key for row in rows for key in row):
        if all(isinstance(row.get(column), str | bool | None) for row in rows):
            finer = [part for table in tables for part in grouped(table, partial(_value, column))]
            tables = finer if FEW * len(finer) <= len(rows) else tables
    return tables


def _value(column: str, row: Row) -> Any:
    return row.get(column)


def _table(rows: Sequence[Row]) -> str:
    first = rows[0]
    shared = {column: value for column, value in first.items() if all(row[column] == value for row in rows)}
    columns = [column for column in first if column not in shared]
    lines = (json.dumps([row[column] for column in columns], separators=(",", ":")) for row in rows)
    head = json.dumps({"shared": shared, "columns": columns}, separators=(",", ":"))
    return f'  {head[:-1]},"rows":[\n   ' + ",\n   ".join(lines) + "\n  ]}"


def _whole(document: Any) -> Any:
    rows = document.get("rows") if isinstance(document, dict) else None
    if not isinstance(rows, dict):
        return document
    lines = ((table, line) for table in rows["tables"] for line in table["rows"])
    whole = [_nested(table["shared"] | dict(zip(table["columns"], line, strict=True))) for table, line in lines]
    return {**document, "rows": whole}


def _nested(cells: Mapping[str, Any]) -> Row:
    row: Row = {}
    for place, value in cells.items():
        *parts, key = place.split(".")
        inside = row
        for part in parts:
            inside = inside.setdefault(part, {})
        inside[key] = value
    return row
