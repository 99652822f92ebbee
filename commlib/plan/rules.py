"""Rules: what a plan is made of, read from a checked document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commlib.plan.lines import Lines

PLACEMENTS, MODES = ("plain", "symmetric"), ("eager", "graph")
MAX_WORLD = 1 << 20


@dataclass(frozen=True)
class Range:
    """Sizes up to and including `max_bytes` (None: all that are left) and what runs there."""

    max_bytes: int | None
    algorithm: str
    params: Mapping[str, int] = field(default_factory=dict)
    ci_bytes: tuple[int, int] | None = None
    gain: float | None = None
    runner_up: str | None = None
    confidence: float | None = None
    line: int | None = field(default=None, compare=False)

    @property
    def choice(self) -> str:
        """What runs, in words: shm_twoshot chunk_bytes=262144."""
        return " ".join([self.algorithm, *(f"{key}={value}" for key, value in self.params.items())])


@dataclass(frozen=True)
class Rule:
    """The ranges of one operation for the keys it names; "*" stands for every dtype or reduction."""

    op: str
    ranges: tuple[Range, ...]
    dtype: str = "*"
    redop: str = "*"
    placement: str = "plain"
    mode: str = "*"
    world: tuple[int, int] = (1, MAX_WORLD)
    source: str = field(default="plan", compare=False)
    number: int = field(default=0, compare=False)
    line: int | None = field(default=None, compare=False)

    @property
    def where(self) -> str:
        """Where it stands: the file, the line where that is known, the number."""
        return f"plan {self.source}{_line(self.line)}: rules[{self.number}]"

    def where_of(self, at: int) -> str:
        """Where one of its ranges stands."""
        return f"plan {self.source}{_line(self.ranges[at].line)}: rules[{self.number}].ranges[{at}]"

    @property
    def keys(self) -> str:
        """What it speaks of, in words; keys that mean everything are left out."""
        named = (("dtype", self.dtype), ("redop", self.redop), ("mode", self.mode))
        words = [self.op, self.placement, *(f"{key}={value}" for key, value in named if value != "*")]
        return " ".join([*words, f"world={world_text(self.world)}"])

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


def read_rules(rules: Sequence[Mapping[str, Any]], source: str, lines: Lines | None = None) -> Iterator[Rule]:
    """Yield the rules of a checked document."""
    places: Lines = lines or {}
    for number, rule in enumerate(rules):
        low, high = rule.get("world", (1, None))
        named = {key: rule[key] for key in ("dtype", "redop", "placement", "mode") if key in rule}
        place = ("rules", number, "ranges")
        yield Rule(
            op=rule["op"],
            ranges=tuple(_range(entry, places.get((*place, at))) for at, entry in enumerate(rule["ranges"])),
            world=(low, MAX_WORLD if high is None else high),
            source=source,
            number=number,
            line=places.get(("rules", number)),
            **named,
        )


def _range(entry: Mapping[str, Any], line: int | None) -> Range:
    interval = entry.get("ci_bytes")
    return Range(
        max_bytes=entry.get("max_bytes"),
        algorithm=entry["algorithm"],
        params=entry.get("params", {}),
        ci_bytes=(interval[0], interval[1]) if interval else None,
        gain=entry.get("gain"),
        runner_up=entry.get("runner_up"),
        confidence=entry.get("confidence"),
        line=line,
    )


def _line(number: int | None) -> str:
    return "" if number is None else f", line {number}"


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
