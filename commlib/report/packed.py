"""Results that are kept: documents of any kind in one file, a short line for a row: what rows share is written once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from commlib.report.document import Row
from commlib.report.formats import flat
from commlib.report.view import grouped

FEW = 4  # rows for each word of a column that rows are sorted by, at least


def packed(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a file; within a document, rows that share their words come to stand together."""
    return "[\n" + ",\n".join(_document(document) for document in documents) + "\n]"


def unpacked(content: Any) -> list[Any]:
    """Return the documents of a file, packed or not."""
    found = content if isinstance(content, list) and all(isinstance(part, dict) for part in content) else [content]
    return [_whole(document) for document in found]


def _document(document: Mapping[str, Any]) -> str:
    parts = [f' "{key}": {json.dumps(value)}' for key, value in document.items() if key != "rows"]
    rows = [dict(flat(row)) for row in document["rows"]]
    words = [column for column in dict.fromkeys(key for row in rows for key in row) if _sorts(column, rows)]
    tables = grouped(rows, lambda row: (*row, *(row.get(column) for column in words)))
    parts.append(' "rows": {"tables": [\n' + ",\n".join(map(_table, tables)) + "\n ]}")
    return "{\n" + ",\n".join(parts) + "\n}"


def _sorts(column: str, rows: Sequence[Row]) -> bool:
    """Whether a column has words, and few enough of them that rows are sorted by it."""
    values = [row.get(column) for row in rows]
    return all(isinstance(value, str | bool | None) for value in values) and FEW * len(set(values)) <= len(rows)


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
