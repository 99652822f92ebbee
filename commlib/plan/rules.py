"""Rules: what a plan is made of. They check what they are made from; the schema says it in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from commlib.plan.lines import Path, line_of

PLACEMENTS, MODES = ("plain", "symmetric"), ("eager", "graph")
MAX_WORLD = 1 << 20
MAX_BYTES = (1 << 62) - 1


class Fault(ValueError):
    """What is wrong with a part of a document, and which part."""

    def __init__(self, text: str, *path: str | int) -> None:
        super().__init__(text)
        self.path: Path = path

    def inside(self, *path: str | int) -> Fault:
        """Return the same fault, of a part that lies deeper."""
        return Fault(str(self), *path, *self.path)


@dataclass(frozen=True)
class Range:
    """Sizes up to and including `max_bytes` (None: all that are left) and what runs there.

    An entry of a fallback is one, too: without a size.
    """

    algorithm: str
    max_bytes: int | None = None
    params: Mapping[str, int] = field(default_factory=dict)
    align: int = 1  # for calls whose pointers and bytes are multiples of it
    ci_bytes: tuple[int, int] | None = None
    gain: float | None = None
    runner_up: str | None = None
    confidence: float | None = None

    def __post_init__(self) -> None:
        _require(
            _named(self.algorithm)
            and (self.max_bytes is None or _whole(self.max_bytes))
            and isinstance(self.params, Mapping)
            and all(map(_whole, self.params.values()))
            and (self.align == 1 or (_whole(self.align) and self.align > 0))
            and (self.gain is None or _number(self.gain))
            and (self.runner_up is None or isinstance(self.runner_up, str))
            and (self.confidence is None or (_number(self.confidence) and 0 <= self.confidence <= 1))
        )
        if self.ci_bytes is not None:
            _require(isinstance(self.ci_bytes, Sequence) and list(map(_whole, self.ci_bytes)) == [True] * 2)
            object.__setattr__(self, "ci_bytes", tuple(self.ci_bytes))
            if self.ci_bytes[0] > self.ci_bytes[1]:
                raise Fault("ci_bytes ends below its start")

    @property
    def choice(self) -> str:
        """What runs, in words: shm_twoshot chunk_bytes=262144."""
        return " ".join([self.algorithm, *(f"{key}={value}" for key, value in self.params.items())])


@dataclass(frozen=True)
class Rule:
    """The ranges of one operation for the keys it names; "*" stands for every dtype or reduction."""

    op: str
    ranges: tuple[Range, ...]
    fallback: tuple[Range, ...] = ()  # what runs where the range for a size cannot: the first that can
    dtype: str = "*"
    redop: str = "*"
    placement: str = "plain"
    mode: str = "*"
    world: tuple[int, int] = (1, MAX_WORLD)
    source: str = field(default="plan", compare=False)
    number: int = field(default=0, compare=False)
    text: str | None = field(default=None, compare=False, repr=False)  # of the file, where there is one

    def __post_init__(self) -> None:
        _require(all(map(_named, (self.op, self.dtype, self.redop))), "op")
        _require(self.placement in PLACEMENTS, "placement")
        _require(self.mode in ("*", *MODES), "mode")
        _require(bool(self.ranges), "ranges")
        for number, entry in enumerate(self.fallback):
            _require(entry.max_bytes is None, "fallback", number, "max_bytes")
        last = -1
        for number, entry in enumerate(self.ranges):
            if entry.max_bytes is None and number + 1 < len(self.ranges):
                raise Fault("only the last range may have no max_bytes", "ranges", number)
            if entry.max_bytes is not None and entry.max_bytes <= last:
                raise Fault(f"max_bytes {entry.max_bytes} is not a number above {last}", "ranges", number)
            last = entry.max_bytes or 0

    @cached_property
    def where(self) -> str:
        """Where it stands: the file, the line where that is known, the number."""
        return f"plan {self.source}{line_of(self.text, ('rules', self.number))}: rules[{self.number}]"

    def where_of(self, part: str, at: int) -> str:
        """Where one of its ranges, or of its fallback, stands."""
        line = line_of(self.text, ("rules", self.number, part, at))
        return f"plan {self.source}{line}: rules[{self.number}].{part}[{at}]"

    @property
    def keys(self) -> str:
        """What it speaks of, in words."""
        return keys_text(self.op, self.placement, self.dtype, self.redop, self.mode, self.world)

    def covers(self, dtype: str, redop: str, placement: str, mode: str, world: int) -> bool:
        """Whether the rule speaks of such a call."""
        keys = ((self.dtype, dtype), (self.redop, redop), (self.mode, mode))
        fits = all(own in ("*", wanted) for own, wanted in keys)
        return fits and self.placement == placement and self.world[0] <= world <= self.world[1]

    def at(self, num_bytes: int) -> int | None:
        """Return the number of the range for a size, or None where the rule has none."""
        for number, entry in enumerate(self.ranges):
            if entry.max_bytes is None or num_bytes <= entry.max_bytes:
                return number
        return None


def read_rule(rule: Mapping[str, Any], number: int, source: str, text: str | None = None) -> Rule:
    """Return one rule of a document; a Fault says what is wrong with it."""
    _require(isinstance(rule, Mapping) and {"op", "ranges"} <= rule.keys() <= _RULE_KEYS)
    given = {key: value for key, value in rule.items() if key not in _PARTS}
    for part in ("ranges", "fallback"):
        entries = rule.get(part, [])
        _require(isinstance(entries, list), part)
        given[part] = tuple(_range(entry, part, at) for at, entry in enumerate(entries))
    return Rule(world=_world(rule.get("world", (1, None))), source=source, number=number, text=text, **given)


_RULE_KEYS = {"op", "ranges", "fallback", "dtype", "redop", "placement", "mode", "world"}
_PARTS = {"ranges", "fallback", "world"}


def _range(entry: Any, part: str, at: int) -> Range:
    try:
        return Range(**entry)
    except Fault as fault:
        raise fault.inside(part, at) from None
    except TypeError:  # keys that are not known, or lacking
        raise Fault("is not a range", part, at) from None


def _world(world: Any) -> tuple[int, int]:
    _require(isinstance(world, Sequence) and len(world) == 2, "world")
    low, high = world[0], MAX_WORLD if world[1] is None else world[1]
    _require(_whole(low) and _whole(high) and 1 <= low <= MAX_WORLD >= high >= 1, "world")
    if high < low:
        raise Fault(f"world ends at {high}, below its start {low}")
    return low, high


def _require(right: bool, *path: str | int) -> None:
    if not right:
        raise Fault("is not as commlib/plan/schema.json wants it", *path)


def _whole(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_BYTES


def _number(value: object) -> bool:
    return type(value) in (int, float)


def _named(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def keys_text(op: str, placement: str, dtype: str, redop: str, mode: str, world: tuple[int, int]) -> str:
    """Return the keys of a rule in words; those that mean everything are left out."""
    named = (("dtype", dtype), ("redop", redop), ("mode", mode))
    words = [op, placement, *(f"{key}={value}" for key, value in named if value != "*")]
    return " ".join([*words, f"world={world_text(world)}"])


def world_text(world: tuple[int, int]) -> str:
    """Return a span of world sizes in words: 2, 3-4, 5-."""
    low, high = world
    return str(low) if low == high else f"{low}-{'' if high == MAX_WORLD else high}"


def size_text(num_bytes: int) -> str:
    """Return a size as the command line reads it: 64K, 1M, 100 B."""
    for unit, scale in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if num_bytes >= scale and num_bytes % scale == 0:
            return f"{num_bytes // scale}{unit}"
    return f"{num_bytes} B"


def span_text(above: int | None, up_to: int | None) -> str:
    """Return a span of sizes in words: above 8K, up to 64K; every size."""
    words = [] if above is None else [f"above {size_text(above)}"]
    if up_to is not None:
        words.append(f"up to {size_text(up_to)}")
    return ", ".join(words) or "every size"
