"""The radix cache: what its calls take from Python, beside numpy, torch and a dictionary of pages.

It has no rows to copy and no GPU, so it is no Kernel: an operation, its size, and who does the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from commlib.counts import counted
from commlib.kernels import prefix_match
from commlib.radix import RadixCache
from commlib.tools.baselines.peer import in_turn
from commlib.tools.timing import Run

OURS = "commlib"
COMPARED = (64, 2048, 16384, 262144)  # tokens
MATCHED = ((2048, 1), (2048, 16), (32768, 1), (32768, 16))  # tokens, nodes on the path
PAGE = 16  # of the dictionary
LEAF = 16  # tokens
EVICTIONS = 50  # of a block at most: each takes a leaf away
EVICTED = 200  # for each of them: 25 blocks, led in by four times as many calls
OPERATIONS = len(COMPARED) + 2 * len(MATCHED) + 3


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
        for number, (page, of_page) in enumerate(zip(ids.split(PAGE), slots.split(PAGE), strict=True)):
            self._pages[number, tuple(page.tolist())] = number + 1, of_page

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
        yield from _match(tokens, nodes)
    cache, ids = _path(2048, 1)
    yield Operation("insert", 2048, "all there", {OURS: partial(cache.insert, ids, ids)})
    yield from _evict(leaves)


def _compare(tokens: int) -> Operation:
    a = torch.arange(tokens, dtype=torch.int32)
    b = a.clone()
    b[-1] = -1
    x, y = a.numpy(), b.numpy()
    calls: dict[str, Run] = {
        OURS: partial(prefix_match, a, b),
        "numpy": lambda: int(np.argmax(x != y)),
        "torch": lambda: int((a != b).nonzero()[0]),
    }
    assert {call() for call in calls.values()} == {tokens - 1}
    return Operation("prefix_match", tokens, "int32", calls, num_bytes=4 * tokens)


def _path(tokens: int, nodes: int) -> tuple[RadixCache, Tensor]:
    """Return a cache that has a prompt in so many nodes, and the prompt."""
    cache, ids = RadixCache(), torch.arange(tokens, dtype=torch.int32)
    for end in range(tokens // nodes, tokens + 1, tokens // nodes):
        cache.insert(ids[:end], ids[:end])
    return cache, ids


def _match(tokens: int, nodes: int) -> Iterator[Operation]:
    cache, ids = _path(tokens, nodes)
    out, pages = torch.empty_like(ids), Pages(ids, ids)
    found = cache.match(ids)
    assert torch.equal(found.slots, ids)
    assert torch.equal(pages.match(ids), ids)
    assert torch.equal(cache.match(ids, out=out).slots, ids)
    matches: dict[str, Run] = {
        OURS: partial(cache.match, ids),
        f"{OURS} out=": partial(cache.match, ids, out=out),
        f"dictionary, {PAGE}": partial(pages.match, ids),
    }
    locks: dict[str, Run] = {OURS: in_turn(partial(cache.lock, found.handle), partial(cache.unlock, found.handle))}
    detail = counted(nodes, "node")
    yield Operation("match", tokens, detail, matches)
    yield Operation("lock, unlock", tokens, detail, locks)


def _evict(leaves: int) -> Iterator[Operation]:
    cache, slots = RadixCache(), torch.arange(LEAF, dtype=torch.int32)
    prompts = [torch.arange(first, first + LEAF, dtype=torch.int32) for first in range(leaves)]
    for prompt in prompts:
        cache.insert(prompt, slots)
    turn = iter(range(leaves, 2**31 // LEAF))

    def renew() -> None:
        cache.insert(prompts[next(turn) % leaves], slots)
        cache.evict(LEAF)

    detail = f"of {leaves} leaves"
    yield Operation(
        "evict", LEAF, detail, {OURS: partial(cache.evict, LEAF)}, iterations=min(EVICTIONS, leaves // EVICTED)
    )
    yield Operation("insert, evict", LEAF, detail, {OURS: renew})
