"""The radix cache: what its calls take from Python, beside numpy, torch and a dictionary of pages.

It has no rows to copy and no GPU, so it is no Kernel: an operation, its size, and who does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from commlib.kernels.prefix import prefix_match
from commlib.radix import RadixCache
from commlib.timing import Run

OURS = "commlib"
COMPARED = (64, 2048, 16384, 262144)  # tokens
MATCHED = ((2048, 1), (2048, 16), (32768, 1), (32768, 16))  # tokens, nodes on the path
PAGE = 16  # of the dictionary
LEAF = 16  # tokens
EVICTIONS = 50  # of a block: few, as each takes a leaf away
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
