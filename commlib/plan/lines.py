"""Lines: where each part of a JSON text stands, which json.loads does not tell: for errors alone, as it takes long."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

Path = tuple[str | int, ...]
"""A part of a document: ("rules", 2, "ranges", 0)."""
Lines = dict[Path, int]

_TOKEN = re.compile(r'[{}\[\],:]|"(?:[^"\\]|\\.)*"|[^\s{}\[\],:"]+')


def line_of(text: str | None, path: Path) -> str:
    """Return the line of a part of a text as an error says it: ", line 7"; nothing where it is not known."""
    lines = {} if text is None else lines_of(text)
    while path and path not in lines:
        path = path[:-1]
    return f", line {lines[path]}" if path in lines else ""


def lines_of(text: str) -> Lines:
    """Return the line of every key and element of a valid JSON text; a key that is there twice is a ValueError."""
    found: Lines = {}
    _Walk(_tokens(text), found).value(())
    return found


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    line, at = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        yield match[0], line


class _Walk:
    """One pass over the tokens of a text that json.loads has taken: its syntax needs no check."""

    def __init__(self, tokens: Iterator[tuple[str, int]], lines: Lines) -> None:
        self._tokens, self._lines = tokens, lines

    def value(self, path: Path) -> str:
        """Take a value, and return its first token."""
        token, line = next(self._tokens)
        self._lines.setdefault(path, line)  # that of a key is known already
        if token == "{":
            self._members(path)
        elif token == "[":
            self._elements(path)
        return token

    def _members(self, path: Path) -> None:
        for token, line in self._tokens:
            if token == "}":
                return
            if token == ",":
                continue
            place = (*path, json.loads(token))
            if place in self._lines:
                raise ValueError(f"line {line}: {token} is there twice, first on line {self._lines[place]}")
            self._lines[place] = line
            next(self._tokens)  # the colon
            self.value(place)

    def _elements(self, path: Path) -> None:
        number = 0
        while True:
            place = (*path, number)
            token = self.value(place)
            if token == "]":
                del self._lines[place]
                return
            if next(self._tokens)[0] == "]":
                return
            number += 1
