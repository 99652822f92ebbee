"""Rules: what a plan is made of, as its file has them, and as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Path = tuple[str | int, ...]
"""A part of a document: ("rules", 2, "ranges", 0)."""

PLACEMENTS, MODES = ("plain", "symmetric"), ("eager", "graph")
MAX_WORLD = 1 << 20
SPARING = -1  # as max_sms: no more than the knee of the plan's curve; kSparing of csrc/include/commlib/call.h
_KEYS = {"dtype": "*", "redop": "*", "placement": "plain", "mode": "*"}  # of a rule, and what they are by default


@dataclass(frozen=True)
class Query:
    op: str
    num_bytes: int
    dtype: str
    redop: str
    world: int
    placement: str = "plain"
    mode: str = "eager"


def _choice_text(algorithm: str, params: Mapping[str, int]) -> str:
    return " ".join([algorithm, *(f"{key}={value}" for key, value in params.items())])


@dataclass(frozen=True, kw_only=True)
class Point:
    """What was measured as the best on at most `sms` multiprocessors, and how much longer than the choice of the range.

    As a share: 0.21 is 21 % longer. Of those with more multiprocessors than that choice there is the fastest.
    """

    sms: int
    algorithm: str
    params: Mapping[str, int] = field(default_factory=dict)
    slower: float

    @property
    def choice(self) -> str:
        return _choice_text(self.algorithm, self.params)

    @property
    def time(self) -> int:
        """Its time in thousandths of that of the range's choice, as native code compares them."""
        return max(0, round(1000 * (1 + self.slower)))


@dataclass(frozen=True, kw_only=True)
class Range:
    """Sizes up to and including `max_bytes` (None: all that are left) and what runs there.

    An entry of a fallback is one, too: without a size.
    """

    max_bytes: int | None = None
    algorithm: str
    params: Mapping[str, int] = field(default_factory=dict)
    align: int = 1  # for calls whose pointers and bytes are multiples of it
    gain: float | None = None
    runner_up: str | None = None
    curve: tuple[Point, ...] = ()  # over multiprocessors, the fewest first

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Range:
        return cls(**{**entry, "curve": tuple(Point(**point) for point in entry.get("curve", ()))})

    @property
    def choice(self) -> str:
        """What runs, as text: shm_twoshot chunk_bytes=262144."""
        return _choice_text(self.algorithm, self.params)

    def fewer(self, sms: int) -> list[Point]:
        return [point for point in reversed(self.curve) if point.sms < sms]

    def on(self, point: Point) -> Range:
        """Return it with what is best on so many multiprocessors."""
        curve = tuple(
            replace(other, slower=(1 + other.slower) / (1 + point.slower) - 1)
            for other in self.curve
            if other.sms < point.sms
        )
        return Range(
            max_bytes=self.max_bytes, align=self.align, algorithm=point.algorithm, params=point.params, curve=curve
        )

    def document(self) -> dict[str, Any]:
        """Return it as a file has it: without what is as usual."""
        values = {key: value for key, value in vars(self).items() if value != getattr(Range, key, {})}
        return values | ({"curve": [vars(point) for point in self.curve]} if self.curve else {})


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The ranges of one operation for the keys it names; "*" stands for every dtype or reduction."""

    op: str
    dtype: str = "*"
    redop: str = "*"
    placement: str = "plain"
    mode: str = "*"
    world: tuple[int, int] = (1, MAX_WORLD)
    ranges: tuple[Range, ...]
    fallback: tuple[Range, ...] = ()  # what runs where the range for a size cannot: the first that can
    source: str = field(default="plan", compare=False)
    number: int = field(default=0, compare=False)

    @classmethod
    def read(cls, rule: Mapping[str, Any], source: str, number: int) -> Rule:
        low, high = rule.get("world", (1, None))
        parts = {part: tuple(map(Range.read, rule.get(part, ()))) for part in ("ranges", "fallback")}
        world = low, MAX_WORLD if high is None else high
        return cls(**{**rule, **parts, "world": world}, source=source, number=number)

    def document(self) -> dict[str, Any]:
        low, high = self.world
        values = {"op": self.op, **{key: getattr(self, key) for key in _KEYS if getattr(self, key) != _KEYS[key]}}
        if self.world != (1, MAX_WORLD):
            values["world"] = [low, None if high == MAX_WORLD else high]
        values["ranges"] = [entry.document() for entry in self.ranges]
        return values | ({"fallback": [entry.document() for entry in self.fallback]} if self.fallback else {})

    def where(self, *part: str | int) -> str:
        """Where it or a part of it stands: the file, the place, and the type if the rule is for one."""
        of_type = "" if self.dtype == "*" else f" of {self.dtype}"
        return f"plan {self.source}: {name_of(('rules', self.number, *part))}{of_type}"

    @property
    def keys(self) -> str:
        """Its keys as text, but for those that mean everything."""
        named = (("dtype", self.dtype), ("redop", self.redop), ("mode", self.mode))
        parts = [self.op, self.placement, *(f"{key}={value}" for key, value in named if value != "*")]
        low, high = self.world
        ranks = str(low) if low == high else f"{low}-{'' if high == MAX_WORLD else high}"
        return " ".join([*parts, f"world={ranks}"])

    def at(self, num_bytes: int) -> int | None:
        for number, entry in enumerate(self.ranges):
            if entry.max_bytes is None or num_bytes <= entry.max_bytes:
                return number
        return None

    def spans(self) -> Iterator[tuple[int | None, Range]]:
        """Yield each range with the largest size below it."""
        above = None
        for entry in self.ranges:
            yield above, entry
            above = entry.max_bytes


def name_of(path: Path) -> str:
    """Return a path as text: rules[2].ranges[1].max_bytes."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{json.dumps(part)[1:-1]}" for part in path)
    return "".join(parts).removeprefix(".") or "the plan"


def size_text(num_bytes: int) -> str:
    """Return a size as the command line reads it: 64K, 1M, 100 B."""
    for unit, scale in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if num_bytes >= scale and num_bytes % scale == 0:
            return f"{num_bytes // scale}{unit}"
    return f"{num_bytes} B"
