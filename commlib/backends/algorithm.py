"""Algorithm: one way to do a collective, as its row in commlib/collectives says it, to Python and to native code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Variants = tuple[Mapping[str, int], ...]


@dataclass(frozen=True)
class Param:
    """A number that a plan may give an algorithm: what it is without one, and its bounds."""

    name: str
    default: int
    least: int
    most: int
    multiple_of: int = 1

    def fault(self, value: int) -> str | None:
        """Say why a value cannot be, or None."""
        if self.least <= value <= self.most and value % self.multiple_of == 0:
            return None
        unit = f"a multiple of {self.multiple_of} " * (self.multiple_of != 1)
        return f"{self.name} {value} is not {unit}between {self.least} and {self.most}"


@dataclass(frozen=True)
class Algorithm:
    """One way to do a collective. `run` is its Python half; None means it is all native.

    `placement` is where its tensors must lie; `arena` that it works in symmetric memory wherever they lie; `ordered`
    that it adds in rank order, so that results are bitwise those of every other ordered algorithm; `refuses(dtype,
    redop, size)` gives a reason or None; `in_place`: input and output may be the same memory, where the collective has
    such a form. `params` are what a plan may set; `variants(num_bytes)` gives those that are worth measuring at a size,
    none where the algorithm is hopeless. `kernel` is the folder of csrc/collectives with its device code.
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
    params: tuple[Param, ...] = ()
    variants: Callable[[int], Variants] = lambda num_bytes: ({},)

    @property
    def needs_arena(self) -> bool:
        """Whether it can only run where there is symmetric memory."""
        return self.arena or bool(self.kernel) or self.placement == "symmetric"

    @property
    def source(self) -> str:
        """Its device code, below csrc."""
        return f"collectives/{self.kernel}/{self.name}.cu" if self.kernel else ""

    @property
    def defaults(self) -> dict[str, int]:
        """What its parameters are where a plan does not say."""
        return {param.name: param.default for param in self.params}

    def fault_of(self, params: Mapping[str, int]) -> str | None:
        """Say why a plan cannot give it such parameters, or None."""
        known = {param.name: param for param in self.params}
        if unknown := sorted(set(params) - set(known)):
            return f"unknown params {unknown}; {self.name} knows {' and '.join(known) or 'none'}"
        return next((fault for name, value in params.items() if (fault := known[name].fault(value))), None)
