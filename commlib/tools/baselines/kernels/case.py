"""What is profiled: a case of a kernel, sets of its inputs, and the candidates that are measured on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from commlib.tools.timing import Run, differing, poison

OURS, PEER, FLOOR = "ours", "peer", "floor"  # a floor bounds what can be had; nobody is compared with it
COPY = "copy"  # the floor that shares are of


@dataclass(frozen=True)
class Case:
    """One problem: n rows of `dim` elements; what that means is the kernel's."""

    kernel: str
    n: int
    dim: int
    dtype: torch.dtype
    pattern: str = "random"
    variant: str = ""  # "", or one of the kernel's variants
    hot: bool = False  # one set of tensors instead of many in rotation

    def __str__(self) -> str:
        """Name it for people."""
        words = [f"{self.kernel} {self.variant}".strip(), f"n {self.n}", f"dim {self.dim}", self.type, self.pattern]
        return ", ".join([*words, self.heat])

    @property
    def heat(self) -> str:
        """Whether a call finds its tensors in the cache."""
        return "hot" if self.hot else "cold"

    @property
    def type(self) -> str:
        """Torch's name of the element type."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def launched(self) -> str:
        """What the name of its kernel on a GPU has in it; "" where it is not ours."""
        return self.kernel

    def words(self) -> list[str]:
        """Return the words after `commlib profile` that ask for this case alone."""
        words = [self.kernel, f"--dim={self.dim}", f"--rows={self.n}", f"--dtype={self.type}"]
        words += [f"--pattern={self.pattern}"] if self.pattern != "random" else []
        return words + ([f"--{self.variant}"] if self.variant else [])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dim * self.dtype.itemsize


class Inputs(ABC):
    """One set of tensors: what a call reads and what it writes.

    `source` and `target` are what the floor copies: together as many bytes as a call moves.
    """

    source: Tensor
    target: Tensor
    outputs: Sequence[Tensor]
    kept: Any = None  # results that a candidate allocates stay until the set's next turn, as they would in a program

    @abstractmethod
    def expected(self) -> Iterable[Tensor]:
        """Return what the outputs must be."""

    def poison(self) -> None:
        """Fill the outputs with what no result has."""
        for output in self.outputs:
            poison(output)

    def wrong(self, returned: Any) -> int:
        """Count the wrong elements of the outputs, or of what a candidate returned in their place."""
        found = [returned] if isinstance(returned, Tensor) else returned
        if not isinstance(found, (tuple, list)) or len(found) != len(self.outputs):
            found = self.outputs
        return sum(map(differing, found, self.expected()))

    def error(self, returned: Any) -> float | None:
        """Return how far the values are from what they must be, where they need not be equal to the bit."""
        return None


@dataclass(frozen=True)
class Candidate:
    """Who is measured: `prepare` takes one set of inputs and returns the call; None with the reason why not."""

    label: str
    prepare: Callable[[Any], Run] | None = None
    role: str = PEER
    graph: bool = True  # can be captured
    compiles: bool = False  # its first call takes torch.compile's time
    reason: str = ""


Arguments = Callable[[Any], tuple[Any, ...]]  # of a function, from a set of inputs
Compiled = Callable[[Callable[..., object], Arguments], Candidate]


class Kernel(Protocol):
    """The functions of a kernel's module."""

    def num_bytes(self, case: Case) -> int:
        """Return the bytes that a call reads and writes."""

    def inputs(self, case: Case, sets: int, device: torch.device) -> Sequence[Inputs]:
        """Return so many sets of tensors."""

    def candidates(self, case: Case, compiled: Compiled) -> list[Candidate]:
        """Return ours, the floors and the peers; one that is missing says so."""


class Others(Protocol):
    """Further candidates, of a file or a test."""

    name: str

    def __call__(self, kernel: str, case: Case, sets: Sequence[Inputs]) -> list[Candidate]:
        """Return them for a case and its sets."""


def copy() -> Candidate:
    """Return torch's copy of as many bytes, in one launch: the floor of bandwidth."""
    return Candidate(COPY, lambda inputs: partial(inputs.target.copy_, inputs.source), FLOOR)


def missing(label: str, reason: str, role: str = PEER) -> Candidate:
    """Return a candidate that is listed with the reason why it is not measured."""
    return Candidate(label, None, role, reason=reason)


def allocating(label: str, function: Callable[..., object], arguments: Arguments) -> Candidate:
    """Return the candidate that calls a function which allocates its results."""

    def prepare(inputs: Any) -> Run:
        given = arguments(inputs)

        def run() -> object:
            inputs.kept = function(*given)
            return inputs.kept

        return run

    return Candidate(label, prepare)
