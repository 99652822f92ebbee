"""What is tuned: a case is one table of the plan, an option one algorithm with its parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from commlib.collectives import COLLECTIVES, Algorithm, Call, Collective
from commlib.collectives.reference import reducible
from commlib.collectives.rows import CHUNKS, TILES

STEP = math.sqrt(2)
_TAKEN_ANYWAY = {param.name: param.default for param in (*CHUNKS, *TILES)}
_PROBE_COUNT = 1 << 12  # elements at which a collective's bytes per element are read off its contract
_WHOLE = 16  # bytes, and elements where there are many: so tensors of models are, and kernels are slower on others


@dataclass(frozen=True)
class Option:
    """An algorithm with the parameters of its launch."""

    algorithm: str
    params: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, algorithm: str, params: Mapping[str, int]) -> Option:
        """Make one from a plan's words; what a backend takes anyway need not be said."""
        said = {name: value for name, value in params.items() if _TAKEN_ANYWAY.get(name) != value}
        return cls(algorithm, tuple(sorted(said.items())))

    @classmethod
    def read(cls, text: str) -> Option:
        """Return the option of such words."""
        algorithm, *params = text.split()
        return cls(algorithm, tuple((name, int(value)) for name, _, value in (p.partition("=") for p in params)))

    def __str__(self) -> str:
        """Return the words a person reads."""
        return " ".join([self.algorithm, *(f"{name}={value}" for name, value in self.params)])


# On symmetric tensors: whatever the plain table chose for the size.
PLAIN = Option("plain")


@dataclass(frozen=True)
class Case:
    """One table to fill: an operation with one element type, in one mode, on tensors of one placement."""

    op: str
    dtype: torch.dtype
    mode: str
    placement: str

    def __str__(self) -> str:
        """Return the words a person reads."""
        words = [self.op, str(self.dtype).removeprefix("torch."), self.mode]
        return " ".join(words + ([self.placement] if self.placement != "plain" else []))

    @classmethod
    def read(cls, text: str) -> Case:
        """Return the case of such words."""
        op, dtype, mode, *placement = text.split()
        return cls(op, getattr(torch, dtype), mode, *(placement or ["plain"]))

    @property
    def collective(self) -> Collective:
        """The collective's contract."""
        return COLLECTIVES[self.op]

    @property
    def in_place(self) -> bool:
        """Measured as it is called most: what replaces its own input in place, all others from one to another."""
        return not self.collective.out_of_place or self.op == "all_reduce"

    def call(self, rank: int, size: int, count: int) -> Call:
        """Return one call."""
        return Call(rank, size, count, self.dtype)

    def algorithms(self, backend: str, size: int) -> list[Algorithm]:
        """Return the backend's algorithms that can make such calls."""
        return [
            a
            for a in self.collective.algorithms
            if a.backend == backend
            and a.placement == self.placement
            and (a.in_place or not self.in_place)
            and a.refuses(self.dtype, "sum", size) is None
        ]

    def launch(self, option: Option) -> dict[str, int]:
        """Return all parameters of an option, also those that it leaves as they are."""
        algorithm = self.collective.algorithm(option.algorithm)
        return {param.name: param.default for param in algorithm.params} | dict(option.params)

    def is_for_large(self, option: Option) -> bool:
        """Whether it moves tiles, or leaves the moving to copy engines."""
        return "tile_bytes" in self.launch(option) or self.collective.algorithm(option.algorithm).engine

    def sms(self, option: Option, num_bytes: int, size: int) -> int:
        """Return the multiprocessors that a call takes: no more blocks than have something to do."""
        params = self.launch(option)
        most = self.collective.algorithm(option.algorithm).max_sms_of(params)
        call = self.call(0, size, _PROBE_COUNT)
        share = num_bytes * _PROBE_COUNT * self.dtype.itemsize // self.collective.num_bytes(call)  # of a peer's block
        of_block = params.get("threads", 0) * params.get("grain_bytes", 0)
        return min(most, share // of_block + 1) if of_block else most

    def counts(self, size: int, low: int, high: int) -> dict[int, int]:
        """Return bytes → count on a grid of √2 from `low` to `high`, each rank's part a multiple of 16 bytes.

        Nothing for what moves no data.
        """
        call = self.call(0, size, _PROBE_COUNT)
        per_element = self.collective.num_bytes(call) / _PROBE_COUNT
        if per_element == 0:
            return {}
        low = max(1, low)
        steps = max(0, round(math.log(high / low, STEP))) if low <= high else -1
        wanted = (min(low * STEP**step, high) for step in range(steps + 1))
        least = max(1, _WHOLE // self.dtype.itemsize)
        steps_of = [(_WHOLE if n >= 64 * _WHOLE * per_element else least, n / per_element) for n in wanted]
        counts = sorted({max(step, round(count / step) * step) for step, count in steps_of})
        whole = map(self.collective.whole, counts)
        return {self.collective.num_bytes(replace(call, count=count)): count for count in whole}


def cases_of(
    ops: Sequence[str], dtypes: Sequence[torch.dtype], modes: Sequence[str], backend: str, size: int
) -> Iterator[Case]:
    """Yield what there is to choose in, plain tensors before symmetric ones: those fall back to what is chosen there.

    The first type stands for all; others are measured where their values matter, in reductions.
    """
    for op, mode in itertools.product(ops, modes):
        collective = COLLECTIVES[op]
        wanted = [d for d in dtypes if not collective.reduces or reducible(d, "sum")]
        for dtype in wanted if collective.reduces else wanted[:1]:
            make = partial(Case, op, dtype, mode)
            plain = make("plain").algorithms(backend, size)
            if make("plain").counts(size, 1 << 10, 1 << 10) and plain:
                if len(plain) > 1 or len(plain[0].variants(1 << 20)) > 1:
                    yield make("plain")
                if make("symmetric").algorithms(backend, size):
                    yield make("symmetric")
