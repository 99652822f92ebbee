"""The texts of the errors of commlib, as the sources have them; … stands for a value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from commlib.errors import KINDS
from tests.pages import ROOT

OUTSIDE = {kind.__name__ for kind in KINDS} | {"RuntimeError"}  # of Python's own: what torch's callers expect
ARGUMENTS = {"ValueError", "TypeError"}
LAUNCHER = "commlib"  # what stands before the launcher's own lines
LAUNCHER_FILE = "launch.py"
# "rank 1: …" is a whole one
NATIVE = re.compile(r'\b(?:fail|end|record_ending)\(\s*"(\w+)",|\breturn (?=text\(\s*"rank)')


class Message(NamedTuple):
    """A text, the kind of its error ("" where the code decides it), and its file."""

    file: str
    kind: str
    text: str

    @property
    def own_words(self) -> int:
        """How many words it has besides values; fewer than two pass on what another place says."""
        return len([word for word in re.findall(r"[A-Za-z_]{2,}", self.text) if word != "rank"])


@cache
def messages() -> list[Message]:
    """Return what every error says."""
    python = [message for path in sorted((ROOT / "commlib").rglob("*.py")) for message in _of_python(path)]
    native = [message for path in sorted((ROOT / "csrc").rglob("*.[hc]*")) for message in _of_native(path)]
    return python + native


def _of_python(path: Path) -> Iterator[Message]:
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and call.args and (kind := _kind(call.func, path.name)):
            yield Message(path.relative_to(ROOT).as_posix(), kind, " ".join(_text(call.args[0]).split()))


def _kind(function: ast.expr, file: str) -> str | None:
    if isinstance(function, ast.Name) and function.id in OUTSIDE | ARGUMENTS:
        return function.id
    says = isinstance(function, ast.Attribute) and function.attr == "say" and file == LAUNCHER_FILE
    return LAUNCHER if says else None


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "…"


def _of_native(path: Path) -> Iterator[Message]:
    source = path.read_text(encoding="utf-8")
    for match in NATIVE.finditer(source):
        if match[1] in {*OUTSIDE, *ARGUMENTS, None}:
            yield Message(path.relative_to(ROOT).as_posix(), match[1] or "", _joined(source[match.end() :]))


def _joined(arguments: str) -> str:
    """Join the literals of a call's arguments; what stands between two of them is a value."""
    parts, depth = "", 0
    for token in re.finditer(r'"((?:[^"\\]|\\.)*)"|[();]|[^\s"();,]+', arguments):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth < 0 or token[0] == ";":
            break
        if token[1] is not None:
            parts += token[1]
        elif token[0] not in {"(", ")", "text"}:
            parts += "…"
    return re.sub("…+", "…", parts).replace('\\"', '"')
