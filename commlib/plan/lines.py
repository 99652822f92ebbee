"""Lines: where each part of a JSON text stands, which json.loads does not tell: for errors alone, as it takes long."""

from __future__ import annotations

import json
import re

Path = tuple[str | int, ...]
"""A part of a document: ("rules", 2, "ranges", 0)."""

_TOKEN = re.compile(r'[{}\[\],]|(?P<key>"(?:[^"\\]|\\.)*")\s*:|"(?:[^"\\]|\\.)*"|[^\s{}\[\],:"]+')


def line_of(text: str | None, path: Path) -> str:
    """Return the line of a part of a text as an error says it: ", line 7"; nothing where it is not known."""
    lines = {} if text is None else lines_of(text)
    while path and path not in lines:
        path = path[:-1]
    return f", line {lines[path]}" if path in lines else ""


def lines_of(text: str) -> dict[Path, int]:
    """Return the line of every key and element of a valid JSON text; a key that is there twice is a ValueError."""
    found: dict[Path, int] = {}
    path: list[str | int] = []  # of the value that comes next
    line, at = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        token, at = match[0], match.start()
        if match["key"]:
            path[-1] = json.loads(match["key"])
            if tuple(path) in found:
                raise ValueError(f"line {line}: {match['key']} is given twice, first on line {found[tuple(path)]}")
            found[tuple(path)] = line
        elif token in "]}":
            path.pop()
        elif token == ",":
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else last
        else:
            found.setdefault(tuple(path), line)  # that of a key is known already
            if token in "{[":
                path.append("" if token == "{" else 0)
    return found


def name_of(path: Path) -> str:
    """Return a path as text: rules[2].ranges[1].max_bytes."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{json.dumps(part)[1:-1]}" for part in path)
    return "".join(parts).removeprefix(".") or "the plan"
