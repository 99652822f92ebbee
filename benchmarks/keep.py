"""Keep results: documents of any command in one file, a short line for a row; `--show` writes them out again.

python benchmarks/keep.py two.json four.json -o benchmarks/results/bench_h200.json
python benchmarks/keep.py --show benchmarks/results/profile_h200.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from written import command_line

from commlib.tools.report import document as files
from commlib.tools.report.document import Row, unpacked
from commlib.tools.report.formats import flat, json_text
from commlib.tools.report.view import grouped

FEW = 8  # rows of a table on average, at least


def main() -> int:
    """Read all files; write one, or print what is in them."""
    parser = command_line(__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--show", action="store_true", help="print every document as the command wrote it")
    options = parser.parse_args()
    documents = [part for path in options.files for part in unpacked(json.loads(path.read_text(encoding="utf-8")))]
    if options.show or options.output is None:
        print("\n".join(json_text(document) for document in documents))
    else:
        files.write(options.output, packed(documents))
    return 0


def packed(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a file; within a document, rows that share their words come to stand together."""
    return "[\n" + ",\n".join(_document(document) for document in documents) + "\n]"


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


if __name__ == "__main__":
    sys.exit(main())
