"""The radix cache: what its calls take from Python, beside numpy, torch and a dictionary of pages.

It has no rows to copy and no GPU, so it is no Kernel: an operation, its size, and who does the same.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor

from commlib.kernels.prefix import prefix_match
from commlib.radix import RadixCache
from commlib.report import files
from commlib.report.figures import fitted, ratio_text
from commlib.report.table import Column, Table
from commlib.timing import Alone, Protocol, Run, environment, fingerprint, measure_alone

Row = dict[str, Any]
SCHEMA, VERSION = "commlib.radix_profile", 1
OURS = "commlib"
COMPARED = (64, 2048, 16384, 262144)  # tokens
MATCHED = ((2048, 1), (2048, 16), (32768, 1), (32768, 16))  # tokens, nodes on the path
PAGE = 16  # of the dictionary
LEAF = 16  # tokens
EVICTIONS = 50  # of a block: few, as each takes a leaf away
STDOUT = Path("-")


@dataclass
class Operation:
    """One thing to do, and who does it: the first is ours."""

    name: str
    tokens: int
    detail: str
    calls: dict[str, Run]
    num_bytes: int = 0  # of one array, where a rate says more than a time
    iterations: int | None = None  # of a block; None: as many as fill it


class Pages:
    """The slots of pages by the page before and their tokens: a cache as a dictionary makes it."""

    def __init__(self, ids: Tensor, slots: Tensor) -> None:
        self._pages: dict[tuple[int, tuple[int, ...]], tuple[int, Tensor]] = {}
        parent = 0
        for number, (page, of_page) in enumerate(zip(ids.split(PAGE), slots.split(PAGE), strict=True), 1):
            self._pages[parent, tuple(page.tolist())] = number, of_page
            parent = number

    def match(self, ids: Tensor) -> Tensor:
        """Return the slots of the longest prefix in whole pages."""
        tokens, parent, found = ids.tolist(), 0, []
        for at in range(0, len(tokens), PAGE):
            page = self._pages.get((parent, tuple(tokens[at : at + PAGE])))
            if page is None:
                break
            parent = page[0]
            found.append(page[1])
        return torch.cat(found) if found else torch.empty(0, dtype=ids.dtype)


def operations(leaves: int) -> Iterator[Operation]:
    """Yield what is measured; the first calls of each prove that all of them find the same."""
    yield from map(_compare, COMPARED)
    for tokens, nodes in MATCHED:
        yield _match(tokens, nodes)
        yield _lock(tokens, nodes)
    yield _insert(2048)
    cache, prompts, slots = _wide(leaves)
    turn = iter(range(leaves, 2**31 // LEAF))

    def renew() -> None:
        cache.insert(prompts[next(turn) % leaves], slots)
        cache.evict(LEAF)

    detail = f"of {leaves} leaves"
    yield Operation("evict", LEAF, detail, {OURS: partial(cache.evict, LEAF)}, iterations=min(EVICTIONS, leaves // 50))
    yield Operation("insert, evict", LEAF, detail, {OURS: renew})


def _compare(tokens: int) -> Operation:
    a = torch.arange(tokens, dtype=torch.int32)
    b = a.clone()
    b[-1] = -1
    x, y = a.numpy(), b.numpy()
    calls: dict[str, Callable[[], int]] = {
        OURS: partial(prefix_match, a, b),
        "numpy": lambda: int(np.argmax(x != y)),
        "torch": lambda: int((a != b).nonzero()[0]),
    }
    assert {call() for call in calls.values()} == {tokens - 1}
    return Operation("prefix_match", tokens, "int32", dict(calls), num_bytes=4 * tokens)


def _path(tokens: int, nodes: int) -> tuple[RadixCache, Tensor]:
    """Return a cache that has a prompt in so many nodes, and the prompt."""
    cache, ids = RadixCache(), torch.arange(tokens, dtype=torch.int32)
    for end in range(tokens // nodes, tokens + 1, tokens // nodes):
        cache.insert(ids[:end], ids[:end])
    return cache, ids


def _match(tokens: int, nodes: int) -> Operation:
    cache, ids = _path(tokens, nodes)
    out, pages = torch.empty_like(ids), Pages(ids, ids)
    assert torch.equal(cache.match(ids).slots, ids)
    assert torch.equal(pages.match(ids), ids)
    assert torch.equal(cache.match(ids, out=out).slots, ids)
    calls: dict[str, Run] = {
        OURS: partial(cache.match, ids),
        f"{OURS} out=": partial(cache.match, ids, out=out),
        f"dictionary, {PAGE}": partial(pages.match, ids),
    }
    return Operation("match", tokens, _nodes(nodes), calls)


def _lock(tokens: int, nodes: int) -> Operation:
    cache, ids = _path(tokens, nodes)
    handle = cache.match(ids).handle

    def both() -> None:
        cache.lock(handle)
        cache.unlock(handle)

    return Operation("lock, unlock", tokens, _nodes(nodes), {OURS: both})


def _insert(tokens: int) -> Operation:
    cache, ids = _path(tokens, 1)
    return Operation("insert", tokens, "all there", {OURS: partial(cache.insert, ids, ids)})


def _wide(leaves: int) -> tuple[RadixCache, list[Tensor], Tensor]:
    """Return a cache of so many leaves, prompts to renew them, and slots."""
    cache, slots = RadixCache(), torch.arange(LEAF, dtype=torch.int32)
    prompts = [torch.arange(first, first + LEAF, dtype=torch.int32) for first in range(leaves)]
    for prompt in prompts:
        cache.insert(prompt, slots)
    return cache, prompts, slots


def _nodes(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def main(command: str, seconds: float, leaves: int, seed: int, path: Path | None) -> int:
    """Measure, print a line for each candidate, and write JSON; Ctrl-C ends it with what there is."""
    width = shutil.get_terminal_size().columns
    columns = _columns(width)
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    machine = fingerprint("cpu")
    rows: list[Row] = []
    title = f"commlib {machine['commlib']} profile radix on {machine['cpu']}, one thread, called from Python"
    _say(path, columns.head(title))
    threads, ended = torch.get_num_threads(), ""
    torch.set_num_threads(1)
    try:
        for operation in operations(leaves):
            found = _measured(operation, seconds / (len(COMPARED) + 2 * len(MATCHED) + 3), seed)
            rows += found
            _say(path, [columns.line(_cells(row)) for row in found])
    except KeyboardInterrupt:
        ended = "interrupted"
        _say(path, ["# interrupted: not complete"])
    finally:
        torch.set_num_threads(threads)
    head = {"schema": SCHEMA, "version": VERSION, "command": command, "created": created}
    state = {"complete": not ended, "ended": ended, "fingerprint": machine, "environment": environment()}
    document = {**head, **state, "leaves": leaves, "rows": rows}
    if path == STDOUT:
        click.echo(json.dumps(document, indent=1))
    elif path is not None:
        files.write(path, json.dumps(document, indent=1))
    return 130 if ended else 0


def _measured(operation: Operation, budget_s: float, seed: int) -> list[Row]:
    protocol = Protocol(blocks=(5, 25), budget_s=budget_s, iterations=operation.iterations, seed=seed, check=False)
    calls = {label: [run] for label, run in operation.calls.items()}
    measured = measure_alone(Alone(torch.device("cpu")), calls, protocol, operation.name)
    ours = measured[0].median_s
    return [
        {
            "operation": operation.name,
            "tokens": operation.tokens,
            "detail": operation.detail,
            "candidate": found.label,
            "median_us": round(found.median_s * 1e6, 4),
            "least_us": round(min(found.times_s) * 1e6, 4),
            "blocks": len(found.times_s),
            "calls": found.iterations,
            "gbps": round(operation.num_bytes / found.median_s / 1e9, 3) if operation.num_bytes else None,
            "to_ours": None if found.label == OURS else round(found.median_s / ours, 3),
        }
        for found in measured
    ]


def _columns(width: int) -> Table:
    return Table(
        [
            Column(" operation", itemgetter("operation"), 15, left=True),
            Column("tokens", itemgetter("tokens"), 7),
            Column("detail", itemgetter("detail"), 16, left=True, spare=2),
            Column("candidate", itemgetter("candidate"), 15, left=True),
            Column("time", itemgetter("time"), 8, "(us)"),
            Column("rate", itemgetter("rate"), 6, "GB/s", spare=1),
            Column("ratio", itemgetter("ratio"), 7, "to ours"),
        ],
        width,
    )


def _cells(row: Row) -> dict[str, str]:
    return {
        "operation": " " + row["operation"],
        "tokens": str(row["tokens"]),
        "detail": row["detail"],
        "candidate": row["candidate"] + ("*" if row["candidate"] == OURS else ""),
        "time": fitted(row["median_us"], 8),
        "rate": "-" if row["gbps"] is None else fitted(row["gbps"], 6),
        "ratio": "-" if row["to_ours"] is None else ratio_text(row["to_ours"]),
    }


def _say(path: Path | None, lines: Sequence[str]) -> None:
    if path != STDOUT:
        for line in lines:
            click.echo(line)
