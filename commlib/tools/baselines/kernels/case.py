"""A case of a kernel, sets of its inputs that take turns, and the candidates that are measured on them."""

from __future__ import annotations

import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from commlib.tools.timing import Measurement, Run, differing, poison

OURS, PEER, FLOOR = "ours", "peer", "floor"  # a floor bounds what can be had; nobody is compared with it
PROBES = ("probe", "empty")  # labels of a user's file that begin so are floors that no share is of
SETS = (3, 240)  # in rotation, and as many calls in a graph
L2_BYTES = 60 << 20  # where the driver does not say
CPU_COLD_BYTES = 64 << 20
FREE_SHARE = 0.3  # of the memory that is free, for all sets together
GPU_SHARED_BYTES, CPU_SHARED_BYTES = 1 << 30, 32 << 20  # of a table or a cache, which all sets share
SEED = 7


@dataclass(frozen=True)
class Case(ABC):
    """One problem of a kernel: n rows of `dim` elements; what that means is the kernel's.

    A row of results has all that has the name of one of its fields.
    """

    kernel: ClassVar[str]
    n: int
    dim: int
    dtype: torch.dtype
    pattern: str = "random"
    variant: str = ""  # "", or one of the kernel's variants
    hot: bool = False  # one set of tensors instead of many in rotation

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes that a call reads and writes."""

    @abstractmethod
    def inputs(self, sets: int, device: torch.device) -> Sequence[Any]:
        """Return so many sets of tensors, each an `Inputs`."""

    @abstractmethod
    def candidates(self) -> list[Candidate]:
        """Return ours, the floors, and other libraries."""

    def __str__(self) -> str:
        return f"{self.kernel} {self.variant}".strip() + f", n {self.n}, dim {self.dim}, {self.pattern}, {self.heat}"

    @property
    def heat(self) -> str:
        return "hot" if self.hot else "cold"

    @property
    def type(self) -> str:
        return type_name(self.dtype)

    @property
    def row_bytes(self) -> int:
        return self.dim * self.dtype.itemsize


class Inputs:
    """One set of tensors: `source` and `target` are what the floor copies, together as many bytes as a call moves."""

    source: Tensor
    target: Tensor
    outputs: Sequence[Tensor]
    result: Any = None  # what a candidate allocates stays until the set's next turn, as it would in a program

    def expected(self) -> Iterable[Tensor]:
        """Return what the outputs must be."""
        return ()

    def poison(self) -> None:
        """Fill the outputs with what no result has."""
        for output in self.outputs:
            poison(output)

    def check(self, returned: Any) -> tuple[int, float | None]:
        """Count the wrong elements of the outputs, or of what was returned; where bits may differ, return how far."""
        tensors = [returned] if isinstance(returned, Tensor) else returned
        if not isinstance(tensors, (tuple, list)) or len(tensors) != len(self.outputs):
            tensors = self.outputs
        return sum(map(differing, tensors, self.expected())), None


Prepare = Callable[[Any], Run]  # from a set of inputs to a call
OfPackage = Callable[[Any, Any], Run]  # from a module and a set of inputs to a call
Arguments = Callable[[Any], tuple[Any, ...]]  # of a function, from a set of inputs


@dataclass
class Candidate:
    """What is measured, and its measurements."""

    label: str
    prepare: Prepare | None = None  # None: it is not measured
    role: str = PEER
    skipped: str = ""  # the reason why it is not measured
    compiles: bool = False  # by torch.compile, for each shape
    runs: Sequence[Run] = ()
    wrong: int | None = None
    error: float | None = None  # the largest that the inputs report, where they do
    timed: Measurement | None = None  # what its figure is of
    eager: Measurement | None = None  # calls of the host

    @property
    def median_s(self) -> float:
        return self.timed.median_s if self.timed else math.inf

    @classmethod
    def copy(cls) -> Candidate:
        """Return torch's copy of as many bytes, in one launch: the floor of bandwidth."""
        return cls("copy", lambda inputs: partial(inputs.target.copy_, inputs.source), FLOOR)

    @classmethod
    def missing(cls, label: str, reason: str, role: str = PEER) -> Candidate:
        """Return one that is listed with the reason why it is not measured."""
        return cls(label, None, role, reason)

    @classmethod
    def allocating(cls, label: str, function: Callable[..., object], arguments: Arguments) -> Candidate:
        """Return the one that calls a function which allocates its results."""
        return cls(label, lambda inputs: holding(inputs, partial(function, *arguments(inputs))))

    @classmethod
    def compiled(cls, function: Callable[..., object], arguments: Arguments) -> Candidate:
        """Return the one that calls a function as torch.compile makes it for the shapes of the case."""
        call = torch.compile(function, dynamic=False, fullgraph=True)
        return cls("torch.compile", lambda inputs: partial(call, *arguments(inputs)), compiles=True)

    @classmethod
    def package(cls, label: str, name: str, prepare: OfPackage, module: str = "", role: str = PEER) -> Candidate:
        """Return one of a package that needs a GPU; the module that prepares it is imported only then."""
        if importlib.util.find_spec(name) is None:
            return cls.missing(label, f"{name} is not installed", role)
        if not torch.cuda.is_available():
            return cls.missing(label, "needs a GPU", role)
        return cls(label, lambda inputs: prepare(importlib.import_module(module or name), inputs), role)

    @classmethod
    def triton(cls, label: str, prepare: OfPackage, role: str = PEER) -> Candidate:
        """Return one whose kernel is in triton_code.py."""
        return cls.package(label, "triton", prepare, "commlib.tools.baselines.kernels.triton_code", role)


def holding(inputs: Inputs, call: Run) -> Run:
    """Return the call with its result held until the set's next turn."""

    def run() -> object:
        inputs.result = call()
        return inputs.result

    return run


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- sets, so many that their turn comes when the cache has forgotten them


def cold_bytes(device: torch.device) -> int:
    """Return how many bytes push all before them out of the cache: twice what it holds."""
    if device.type != "cuda":
        return CPU_COLD_BYTES
    return 2 * int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or L2_BYTES)


def sets_for(case: Case, device: torch.device) -> int:
    """Return how many sets rotate: one hot set, or as many as are cold, and as memory and graphs allow."""
    if case.hot:
        return 1
    num_bytes = max(case.num_bytes, 1)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2 << 30
    low, high = SETS
    return max(1, min(max(-(-cold_bytes(device) // num_bytes), low), high, int(FREE_SHARE * free) // num_bytes))


def shared_rows(row_bytes: int, n: int, device: torch.device) -> int:
    """Return how many rows a table or cache has: far more than a call touches, where that is not too much."""
    room = GPU_SHARED_BYTES if device.type == "cuda" else CPU_SHARED_BYTES
    return max(n, room // max(row_bytes, 1))


@lru_cache(maxsize=1)
def table(rows: int, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a table of random values; the next case often wants the same."""
    return torch.rand(rows, dim, dtype=dtype, device=device)


def rows_of(pattern: str, sets: int, n: int, total: int, device: torch.device) -> Tensor:
    """Return int64 rows [sets, n] below `total`, n of which are no more.

    Rows of a set are distinct, and so are those of neighbouring sets while there are rows left.
    """
    turn = torch.arange(sets * n, device=device).view(sets, n) % total
    if pattern == "sequential":
        return turn
    return torch.randperm(total, generator=torch.Generator(device).manual_seed(SEED), device=device)[turn]
