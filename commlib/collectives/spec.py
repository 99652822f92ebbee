"""What a collective and an algorithm are: the types behind the tables of this folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from commlib.backends.algorithm import Algorithm, Param

if TYPE_CHECKING:
    from commlib.communicator import Communicator

Fold = Callable[[Sequence[torch.Tensor], str], torch.Tensor]
"""Reduces tensors in order: `ordered` (reference.py) to the bit, or a float64 one for tolerances."""


@dataclass(frozen=True)
class Call:
    """One call as tests and bench describe it, the same on every rank but for `rank`."""

    rank: int
    size: int
    count: int
    dtype: torch.dtype
    redop: str = "sum"
    root: int = 0


@dataclass(frozen=True)
class Collective:
    """The contract of one collective and the table of its algorithms.

    `count` of a call is what nccl-tests prints as count. `shapes(call)` gives the elements of (input,
    output) on this rank, 0 where it has none. `reference(call, inputs, fold)` gives this rank's output from
    every rank's input, or None where it receives nothing. `invoke(comm, x, out, call)` makes the public
    call. `in_place(call, whole)` cuts (input, output) out of one buffer; None where that has no meaning.
    """

    name: str
    shapes: Callable[[Call], tuple[int, int]]
    reference: Callable[[Call, Sequence[torch.Tensor], Fold], torch.Tensor | None]
    invoke: Callable[[Communicator, torch.Tensor, torch.Tensor, Call], object]
    size_count: Callable[[Call], int]
    bus_factor: Callable[[int], float]
    algorithms: tuple[Algorithm, ...]
    reduces: bool = False
    rooted: bool = False
    in_place: Callable[[Call, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None = None
    out_of_place: bool = True

    def algorithm(self, name: str) -> Algorithm:
        """Return the algorithm of that name."""
        for algorithm in self.algorithms:
            if algorithm.name == name:
                return algorithm
        known = ", ".join(a.name for a in self.algorithms)
        raise ValueError(f"{self.name} has no algorithm {name!r}; it has {known}")

    def num_bytes(self, call: Call) -> int:
        """Return the size nccl-tests and the plan use for this call."""
        return self.size_count(call) * call.dtype.itemsize


__all__ = ["Algorithm", "Call", "Collective", "Fold", "Param"]
