"""Traces of requests: JSON lines, one request each, read one by one.

{"tokens": [5, 6, [1000, 512]], "output": [7, 8], "namespace": "adapter", "priority": 1}

`tokens` is the prompt; a pair [first, count] stands for so many consecutive numbers. The rest may be left out: `output`
is what was generated, as tokens or as their number if nobody asks for them again; `namespace` is text, a number or a
list of those.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from commlib.radix import Namespace

Tokens: TypeAlias = NDArray[np.int32]
KEYS = ("tokens", "output", "namespace", "priority")
LOW, HIGH = -(2**31), 2**31 - 1
MOST = 1 << 24  # tokens of one request


@dataclass(frozen=True)
class Request:
    """One request of a trace."""

    tokens: Tokens
    output: Tokens
    namespace: Namespace = None
    priority: int = 0


class Trace:
    """The requests of a file, in order; `share` says how much of it was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.share = 0.0
        self._unnamed = 0  # tokens of outputs that are only counted

    def __iter__(self) -> Iterator[Request]:
        """Yield the requests; a ValueError names the line that is none."""
        size, done = max(self.path.stat().st_size, 1), 0
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                done += len(line)
                self.share = done / size
                if line.strip():
                    try:
                        yield self._request(line)
                    except ValueError as error:
                        raise ValueError(f"{self.path}, line {number}: {error}") from None

    def _request(self, line: bytes) -> Request:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from None
        if not isinstance(found, dict):
            raise ValueError(f"a request is an object with tokens, not {_kind(found)}")
        if unknown := [key for key in found if key not in KEYS]:
            raise ValueError(f"a request has no {unknown[0]!r}; there are {', '.join(KEYS)}")
        if "tokens" not in found:
            raise ValueError("a request needs the key tokens")
        tokens = _tokens("tokens", found["tokens"])
        if not len(tokens):
            raise ValueError("tokens is empty; a prompt has 1 or more")
        output = found.get("output", 0)
        generated = self._fresh(output) if _is_int(output) else _tokens("output", output)
        priority = found.get("priority", 0)
        if not _is_int(priority) or not -(2**63) <= priority < 2**63:
            raise ValueError(f"priority is {_kind(priority)}, not a 64-bit integer")
        return Request(tokens, generated, _namespace(found.get("namespace")), priority)

    def _fresh(self, count: int) -> Tokens:
        """Return tokens that nobody has: negative ones, each once."""
        if not 0 <= count <= MOST:
            raise ValueError(f"output is {count}, but a request has from 0 to {MOST} tokens")
        first = self._unnamed
        self._unnamed += count
        return (LOW + np.arange(first, self._unnamed) % -LOW).astype(np.int32)


def _tokens(name: str, found: Any) -> Tokens:
    if not isinstance(found, list):
        raise ValueError(f"{name} is {_kind(found)}, not a list of numbers")
    pieces: list[NDArray[np.int64]] = []
    single: list[int] = []
    total = 0
    for at, item in enumerate(found):
        first, count = item if isinstance(item, list) and len(item) == 2 else (item, 1)
        if not (_is_int(first) and _is_int(count)):
            raise ValueError(f"{name}[{at}] is {_kind(item)}, not a number or a pair [first, count]")
        total += count
        if count < 0 or total > MOST:
            raise ValueError(f"{name}[{at}] makes {total} tokens, but a request has from 0 to {MOST}")
        if not LOW <= first <= first + max(count, 1) - 1 <= HIGH:
            raise ValueError(f"{name}[{at}] is {item}, but tokens are from {LOW} to {HIGH}")
        if isinstance(item, list):
            pieces += [np.array(single, np.int64), np.arange(first, first + count)]
            single = []
        else:
            single.append(first)
    return np.concatenate([*pieces, np.array(single, np.int64)]).astype(np.int32)


def _namespace(found: Any) -> Namespace:
    parts = found if isinstance(found, list) else [found]
    if not all(part is None or isinstance(part, str) or _is_int(part) for part in parts):
        raise ValueError(f"namespace is {_kind(found)}, not text, a number or a list of those")
    return tuple(parts) if isinstance(found, list) else found


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 30 else f"{text[:27]}..."
