"""What a collective and an algorithm are: the types behind the tables of this folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from commlib.collectives.reference import reducible

Variants = tuple[Mapping[str, int], ...]
MAX_SMS = 256  # of a GPU that kernels serve
NCCL_SMS = 32  # multiprocessors that NCCL's kernels take at most between GPUs of one host


@dataclass(frozen=True)
class Param:
    """A number that a plan may give an algorithm: what it is without one, and its bounds."""

    name: str
    default: int
    minimum: int
    maximum: int
    multiple_of: int = 1

    def fault(self, value: int) -> str | None:
        if self.minimum <= value <= self.maximum and value % self.multiple_of == 0:
            return None
        unit = f"a multiple of {self.multiple_of} " * (self.multiple_of != 1)
        return f"{self.name} {value} is not {unit}between {self.minimum} and {self.maximum}"


@dataclass(frozen=True)
class Algorithm:
    """One way to do a collective. `run` is its Python half; None means it is all native.

    `placement` is where its tensors must lie; `arena` that it works in symmetric memory wherever they lie;
    `ordered` that it adds in rank order, so that results are bitwise those of every other ordered algorithm;
    `refuses(dtype, redop, size)` gives a reason or None;
    `in_place`: input and output may be the same memory, where the collective has such a form; `composed` that it is
    another call and, behind it, its kernel; `engine` that copy engines move its data, and its kernel only says when.
    `params` are what a plan may set; `variants(num_bytes)` gives those that
    are worth measuring at a size, none where the algorithm is hopeless. `kernel` is the folder of csrc/collectives with
    its device code; `folder` is where a plugin's native half lies, which its loader fills in. It takes `sms`
    multiprocessors at most, where it has no `blocks`. A plugin's `function()` returns a function of tvm-ffi, its native
    half, which works in `room_bytes` of each rank (csrc/include/commlib/ffi.h).
    """

    name: str
    backend: str
    placement: str = "plain"
    arena: bool = False
    kernel: str = ""
    ordered: bool = True
    run: Callable[..., Any] | None = None
    refuses: Callable[[torch.dtype, str, int], str | None] = lambda dtype, redop, size: None
    in_place: bool = True
    composed: bool = False
    engine: bool = False
    params: tuple[Param, ...] = ()
    variants: Callable[[int], Variants] = lambda num_bytes: ({},)
    folder: str = ""
    sms: int = NCCL_SMS
    function: Callable[[], Any] | None = None
    room_bytes: int = 0

    def max_sms_of(self, params: Mapping[str, int]) -> int:
        """Return the multiprocessors of a GPU that it takes at most, 0 for none."""
        if self.backend != "nccl" or self.engine:
            return 0
        defaults = {param.name: param.default for param in self.params}
        return {"blocks": self.sms, **defaults, **params}["blocks"]

    @property
    def needs_arena(self) -> bool:
        """Whether it can only run where there is symmetric memory."""
        return (
            self.arena
            or self.function is not None
            or (bool(self.kernel) and not self.composed)
            or self.placement == "symmetric"
        )

    @property
    def source(self) -> str:
        """Its device code, below csrc; a plugin's by its own path."""
        if self.folder and self.kernel:
            return f"{self.folder}/{self.name}.cu"
        return f"collectives/{self.kernel}/{self.name}.cu" if self.kernel else ""

    def fault_of(self, params: Mapping[str, int]) -> str | None:
        known = {param.name: param for param in self.params}
        if unknown := sorted(set(params) - set(known)):
            return f"unknown params {unknown}; {self.name} knows {' and '.join(known) or 'none'}"
        return next((fault for name, value in params.items() if (fault := known[name].fault(value))), None)


Fold = Callable[[Sequence[torch.Tensor], str], torch.Tensor]
"""Reduces tensors in order: `ordered` (reference.py) to the bit, or a float64 one for tolerances."""


@dataclass(frozen=True)
class Call:
    """One call as tests and bench describe it, the same on every rank but for `rank`."""

    rank: int
    size: int
    count: int
    dtype: torch.dtype
    redop: Any = "sum"  # a name of REDOPS
    root: int = 0

    def block(self, whole: torch.Tensor) -> torch.Tensor:
        return whole[self.rank * self.count : (self.rank + 1) * self.count]


@dataclass(frozen=True)
class Collective:
    """The contract of one collective and the table of its algorithms.

    `count` of a call is what nccl-tests prints as count. `shapes(call)` gives the elements of (input, output) on this
    rank, 0 where it has none. `reference(call, inputs, fold)` gives this rank's output from every rank's input, or None
    where it receives nothing. `invoke(comm, x, out, call)` makes the public call of a Communicator, which stands above
    this layer. `has_in_place`: input and output may be the same memory, or the smaller of them in the larger.
    `of_rows`: kernels end with what is done to each row of the sum. A count near c is a multiple of `unit(c)`. Outputs
    may be `close` to the reference, as a share of it, where their bits may differ. The size of a call is that of
    `size_count(call)` elements, else of the larger tensor of a root; a rank moves `bus_factor(ranks)` times as much.
    """

    name: str
    reference: Callable[[Call, Sequence[torch.Tensor], Fold], torch.Tensor | None]
    invoke: Callable[[Any, torch.Tensor, torch.Tensor, Call], object]
    algorithms: tuple[Algorithm, ...]
    shapes: Callable[[Call], tuple[int, int]] = lambda call: (call.count, call.count)
    reduces: bool = False
    rooted: bool = False
    has_in_place: bool = True
    out_of_place: bool = True
    unit: Callable[[int], int] = lambda count: 1
    of_rows: bool = False
    close: Callable[[torch.dtype], float] | None = None
    size_count: Callable[[Call], int] | None = None
    bus_factor: Callable[[int], float] = lambda n: (n - 1) / n

    def rows(self, backend: str) -> dict[str, Algorithm]:
        return {a.name: a for a in self.algorithms if a.backend == backend}

    def algorithm(self, name: str) -> Algorithm:
        for algorithm in self.algorithms:
            if algorithm.name == name:
                return algorithm
        known = ", ".join(a.name for a in self.algorithms)
        raise ValueError(f"{self.name} has no algorithm {name!r}; it has {known}")

    def refusal(self, algorithm: Algorithm, dtype: str, redop: str, size: int) -> str | None:
        """Say why an algorithm does not run calls of a type and a reduction on so many ranks, or None."""
        element: torch.dtype = getattr(torch, dtype)
        if self.reduces and not reducible(element, redop):
            return f"there is no {redop} of {dtype}"
        if size == 1 and not self.reduces:
            return None  # a copy
        return algorithm.refuses(element, redop, size)

    def whole(self, count: int) -> int:
        unit = self.unit(count)
        return -(-count // unit) * unit

    def in_place(self, call: Call, whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cut (input, output) out of one buffer: the smaller one is this rank's block of the larger."""
        elements = self.shapes(call)
        if elements[0] == elements[1]:
            return whole, whole
        smaller = elements.index(min(elements))
        start = sum(self.shapes(replace(call, rank=rank))[smaller] for rank in range(call.rank))
        block = whole[start : start + elements[smaller]]
        return (block, whole) if smaller == 0 else (whole, block)

    def num_bytes(self, call: Call) -> int:
        """Return the size nccl-tests and the plan use for this call."""
        count = max(self.shapes(replace(call, rank=call.root))) if self.size_count is None else self.size_count(call)
        return count * call.dtype.itemsize
