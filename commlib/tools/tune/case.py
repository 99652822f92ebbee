"""What is tuned: a case is a table of the plan, an option an algorithm with parameters, samples are their times."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from commlib.collectives import COLLECTIVES, Algorithm, Call, Collective
from commlib.collectives.reference import reducible
from commlib.collectives.rows import CHUNKS, TILES

SCHEMA, VERSION, SAMPLES = "commlib.samples", 1, ".samples.json"  # in place of the suffix of a plan
_DEFAULTS = {param.name: param.default for param in (*CHUNKS, *TILES)}
_PROBE_COUNT = 1 << 12  # elements at which a collective's bytes per element are read off its contract
_MULTIPLE = 16  # bytes, and elements of large tensors: as in models, and kernels are slower on others


@dataclass(frozen=True)
class Option:
    """An algorithm with the parameters of its launch."""

    algorithm: str
    params: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, algorithm: str, params: Mapping[str, int]) -> Option:
        """Return one without the parameters that are the backend's defaults."""
        return cls(algorithm, tuple(sorted((k, v) for k, v in params.items() if _DEFAULTS.get(k) != v)))

    @classmethod
    def read(cls, text: str) -> Option:
        algorithm, *params = text.split()
        return cls(algorithm, tuple((name, int(value)) for name, _, value in (p.partition("=") for p in params)))

    def __str__(self) -> str:
        return " ".join([self.algorithm, *(f"{name}={value}" for name, value in self.params)])


PLAIN = Option("plain")  # on symmetric tensors: whatever the plain table chose for the size


@dataclass(frozen=True)
class Case:
    """One table to fill: an operation with one element type, in one mode, on tensors of one placement."""

    op: str
    dtype: torch.dtype
    mode: str
    placement: str

    def __str__(self) -> str:
        return f"{self.op} {self.type_name} {self.mode} {self.placement}".removesuffix(" plain")

    @classmethod
    def read(cls, text: str) -> Case:
        op, dtype, mode, *placement = text.split()
        return cls(op, getattr(torch, dtype), mode, *(placement or ["plain"]))

    @property
    def type_name(self) -> str:
        """The element type as plans name it."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def collective(self) -> Collective:
        return COLLECTIVES[self.op]

    @property
    def in_place(self) -> bool:
        """Whether it is measured in place: all_reduce, and what has no other form."""
        return not self.collective.out_of_place or self.op == "all_reduce"

    def algorithms(self, backend: str, size: int) -> list[Algorithm]:
        """Return the backend's algorithms that can make such calls."""
        here = [a for a in self.collective.algorithms if (a.backend, a.placement) == (backend, self.placement)]
        return [a for a in here if a.in_place >= self.in_place and a.refuses(self.dtype, "sum", size) is None]

    def max_sms(self, option: Option) -> int:
        """Return the multiprocessors that a call takes at most."""
        return self.collective.algorithm(option.algorithm).max_sms_of(dict(option.params))

    def sms(self, option: Option, num_bytes: int, size: int) -> int:
        """Return the multiprocessors that a call takes: no more blocks than have something to do."""
        params = {param.name: param.default for param in self.collective.algorithm(option.algorithm).params}
        params |= dict(option.params)
        probe = self.collective.num_bytes(Call(0, size, _PROBE_COUNT, self.dtype))
        share = num_bytes * _PROBE_COUNT * self.dtype.itemsize // probe  # of a peer's block
        of_block = params.get("threads", 0) * params.get("grain_bytes", 0)
        return min(self.max_sms(option), share // of_block + 1) if of_block else self.max_sms(option)

    def counts(self, size: int, low: int, high: int) -> dict[int, int]:
        """Return bytes → count on a grid of √2, each rank's part a multiple of 16 bytes; a barrier has none."""
        call = Call(0, size, _PROBE_COUNT, self.dtype)
        per_element = self.collective.num_bytes(call) / _PROBE_COUNT
        if per_element == 0:
            return {}
        low = max(1, low)
        steps = max(0, round(2 * math.log2(high / low))) if low <= high else -1
        wanted = (min(low * math.sqrt(2) ** step, high) for step in range(steps + 1))
        small = max(1, _MULTIPLE // self.dtype.itemsize)
        steps_of = [(_MULTIPLE if n >= 64 * _MULTIPLE * per_element else small, n / per_element) for n in wanted]
        counts = sorted({max(step, round(count / step) * step) for step, count in steps_of})
        whole = map(self.collective.whole, counts)
        return {self.collective.num_bytes(replace(call, count=count)): count for count in whole}


def cases_of(
    ops: Sequence[str], dtypes: Sequence[torch.dtype], modes: Sequence[str], backend: str, size: int
) -> Iterator[Case]:
    """Yield what has more than one option: plain tensors first; types after the first only of reductions."""
    for op, mode in itertools.product(ops, modes):
        reduces = COLLECTIVES[op].reduces
        for dtype in [d for d in dtypes if not reduces or reducible(d, "sum")][: None if reduces else 1]:
            plain, symmetric = (Case(op, dtype, mode, placement) for placement in ("plain", "symmetric"))
            algorithms = plain.algorithms(backend, size)
            if plain.counts(size, 1 << 10, 1 << 10) and algorithms:
                if len(algorithms) > 1 or len(algorithms[0].variants(1 << 20)) > 1:
                    yield plain
                if symmetric.algorithms(backend, size):
                    yield symmetric


@dataclass
class Samples:
    """Seconds per call of the slowest rank in each block; options that were raced out have only a few blocks."""

    times: dict[int, dict[Option, tuple[float, ...]]] = field(default_factory=dict)
    plain: dict[int, Option] = field(default_factory=dict)  # what PLAIN stands for, by size
    sms: dict[int, dict[Option, int]] = field(default_factory=dict)  # multiprocessors, at sizes where they matter

    @property
    def sizes(self) -> list[int]:
        return sorted(size for size, of_size in self.times.items() if of_size)

    @property
    def options(self) -> list[Option]:
        """All options that were timed somewhere, in a fixed order."""
        return sorted({option for of_size in self.times.values() for option in of_size}, key=str)

    def medians(self, size: int) -> dict[Option, float]:
        """Return the median of each option at a size."""
        return {option: median(self.times[size][option]) for option in sorted(self.times[size], key=str)}

    def document(self) -> dict[str, Any]:
        """Return for a file what each option took: medians in µs, by size; null where it was not timed."""
        medians = [self.medians(size) for size in self.sizes]
        rows = {
            str(option): [round(row[option] * 1e6, 3) if option in row else None for row in medians]
            for option in self.options
        }
        plain = {"plain": [str(self.plain[size]) if size in self.plain else None for size in self.sizes]}
        return {"bytes": self.sizes, **(plain if self.plain else {}), "p50_us": rows}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Samples:
        """Return samples of one block each."""
        sizes, rows = document["bytes"], document["p50_us"].items()
        plain = zip(sizes, document.get("plain", ()), strict=False)
        return cls(
            {size: {Option.read(o): (of[at] * 1e-6,) for o, of in rows if of[at]} for at, size in enumerate(sizes)},
            {size: Option.read(option) for size, option in plain if option},
        )


def read_samples(path: Path) -> tuple[dict[str, Any], dict[int, dict[Case, Samples]]]:
    """Return a file of samples, as it is and by number of ranks; any other file is a ValueError."""
    by_world: dict[int, dict[Case, Samples]] = {}
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        assert (document["schema"], document["version"]) == (SCHEMA, VERSION)
        for name, of_case in document["cases"].items():  # all_reduce float32 eager, 2 ranks
            case, _, ranks = name.rpartition(", ")
            by_world.setdefault(int(ranks.removesuffix(" ranks")), {})[Case.read(case)] = Samples.read(of_case)
    except OSError as error:
        raise ValueError(f"cannot read samples {path}: {error.strerror}") from None
    except (ValueError, KeyError, AssertionError):
        raise ValueError(f"{path} is no file of samples, version {VERSION}; give one next to a plan") from None
    return document, by_world
