"""radix: what calls of the radix cache take from Python; there are no rows to copy, and no GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from commlib.counts import counted
from commlib.kernels import prefix_match
from commlib.radix import RadixCache
from commlib.tools.baselines.kernels.case import OURS, Candidate, Case, Inputs
from commlib.tools.baselines.peer import in_turn
from commlib.tools.timing import Run

COMPARED = (64, 2048, 16384, 262144)  # tokens
MATCHED = ((2048, 1), (32768, 1), (2048, 16), (32768, 16))  # tokens, nodes on the path
LEAF = 16  # tokens


@dataclass(frozen=True)
class Radix(Case):
    """One operation, `variant`, on n tokens: in so many nodes, or in a tree of so many leaves."""

    kernel = "radix"
    nodes: int = 0
    leaves: int = 0

    @property
    def num_bytes(self) -> int:
        """One of two arrays, where a rate says more than a time."""
        return 4 * self.n if self.variant == "prefix_match" else 0

    @property
    def detail(self) -> str:
        if self.leaves:
            return f"{self.leaves} leaves"
        return counted(self.nodes, "node") if self.nodes else "all there" if self.variant == "insert" else "int32"

    def __str__(self) -> str:
        return f"radix {self.variant}, {self.detail}"

    def inputs(self, sets: int, device: torch.device) -> Sequence[Calls]:
        return [Calls(self)]

    def candidates(self) -> list[Candidate]:
        by_operation = {
            "prefix_match": [
                Candidate("commlib", lambda i: partial(prefix_match, i.ids, i.other), OURS),
                Candidate("numpy", lambda i: partial(_first, i.ids.numpy(), i.other.numpy())),
                Candidate("torch", lambda i: lambda: int((i.ids != i.other).nonzero()[0])),
            ],
            "match": [
                Candidate("commlib", lambda i: partial(i.cache.match, i.ids), OURS),
            ],
            "lock, unlock": [Candidate("commlib", Calls.lock_unlock, OURS)],
            "insert": [Candidate("commlib", lambda i: partial(i.cache.insert, i.ids, i.ids), OURS)],
            "insert, evict": [Candidate("commlib", Calls.renew, OURS)],
        }
        return by_operation[self.variant]


def cases(leaves: int) -> Iterator[Radix]:
    made = partial(Radix, dim=1, dtype=torch.int32, pattern="", hot=True)
    yield from (made(n, variant="prefix_match") for n in COMPARED)
    for variant in ("match", "lock, unlock"):
        yield from (made(n, variant=variant, nodes=nodes) for n, nodes in MATCHED)
    yield made(2048, variant="insert")
    yield made(LEAF, variant="insert, evict", leaves=leaves)


class Calls(Inputs):
    """A cache that has a prompt in so many nodes, or leaves to evict; what a call returns is compared."""

    outputs: Sequence[Tensor] = ()

    def __init__(self, case: Radix) -> None:
        self.case, self.cache = case, RadixCache()
        self.ids = self.source = torch.arange(case.n, dtype=torch.int32)
        self.other = self.ids.clone()
        self.other[-1] = -1
        if case.leaves:
            self.prompts = [torch.arange(first, first + LEAF, dtype=torch.int32) for first in range(case.leaves)]
            for prompt in self.prompts:
                self.cache.insert(prompt, self.ids)
        else:
            step = case.n // max(case.nodes, 1)
            for end in range(step, case.n + 1, step):
                self.cache.insert(self.ids[:end], self.ids[:end])

    def check(self, returned: Any) -> tuple[int, float | None]:
        """Compare what all candidates must return: the first difference, or the slots of the prompt."""
        if self.case.variant == "prefix_match":
            return int(returned != self.case.n - 1), None
        slots = getattr(returned, "slots", returned)
        return int(self.case.variant == "match" and not torch.equal(slots, self.ids)), None

    def lock_unlock(self) -> Run:
        """Return both calls, of the prompt."""
        handle = self.cache.match(self.ids).handle
        return in_turn(partial(self.cache.lock, handle), partial(self.cache.unlock, handle))

    def renew(self) -> Run:
        """Return what puts a leaf back and takes the oldest away."""
        turn = cycle(self.prompts)

        def run() -> None:
            self.cache.insert(next(turn), self.ids)
            self.cache.evict(LEAF)

        return run


def _first(x: np.ndarray, y: np.ndarray) -> int:
    return int(np.argmax(x != y))
