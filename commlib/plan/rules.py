"""Rules: what a plan is made of; its file, which schema.json describes, and whose faults name the file and the rule."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from itertools import pairwise
from types import NoneType
from typing import Any, NamedTuple, NoReturn

from commlib.errors import printable

Path = tuple[str | int, ...]
"""A part of a document: ("rules", 2, "ranges", 0)."""

SCHEMA, VERSION = "commlib.plan", 2
MAX_RULES = (1 << 16) - 1  # the native tables count them in 16 bits
TOO_MANY = f"it has {{}} rules; a plan has at most {MAX_RULES}"
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
        return " ".join([self.algorithm, *(f"{key}={value}" for key, value in self.params.items())])

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


Span = tuple[float, float, Range]


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

    def spans(self) -> Iterator[Span]:
        """Yield each range behind the smallest and the largest of its sizes."""
        low: float = 0
        for entry in self.ranges:
            high = math.inf if entry.max_bytes is None else entry.max_bytes
            yield low, high, entry
            low = high + 1


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


# --- the file ---------------------------------------------------------------------------------------------------------


@cache
def schema() -> dict[str, Any]:
    """Return the JSON schema of a plan: the one table of keys and types, also for other tools."""
    text = (resources.files("commlib") / "plan" / "schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def parse(text: str, source: str) -> Any:
    """Return the document of a JSON text; a fault of its syntax is a ValueError that names the line."""
    try:
        return printable(json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique))
    except (RecursionError, ValueError) as error:
        raise ValueError(f"plan {source}: {error}; write it again, or take a whole copy") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{json.dumps(twice[0])} is there twice in one object; keep one of them")
    return dict(pairs)


def read_rules(document: Any, source: str) -> tuple[Rule, ...]:
    """Return the rules of a document; a fault is a ValueError that names the file, the part and the rule."""
    rules: tuple[Rule, ...] = ()
    fault = _head_fault(document) or fault_of(document, schema())
    if fault is None:
        rules = tuple(Rule.read(rule, source, at) for at, rule in enumerate(document["rules"]))
        fault = next((fault for rule in rules for fault in _disorder(rule)), None)
    if fault is not None:
        raise ValueError(f"plan {source}: {fault.text}{_rule_text(document, fault.path)}")
    return rules


def _head_fault(document: Any) -> Fault | None:
    """Return why this is no plan of this version, or of so many rules."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        why = "a plan is an object" if not isinstance(document, dict) else f'its "schema" is not "{SCHEMA}"'
        return Fault(False, (), f"not a plan file ({why}); take a file that `commlib tune` wrote")
    version = document.get("version")
    if type(version) is int and version != VERSION:
        newer = version > VERSION
        remedy = "upgrade commlib" if newer else "run `commlib tune` again"
        than = f"{'newer' if newer else 'older'} than the {VERSION} that this commlib reads"
        return Fault(False, ("version",), f"version {version} is {than}; {remedy}")
    count = len(document["rules"]) if isinstance(document.get("rules"), list) else 0
    return Fault(False, ("rules",), TOO_MANY.format(count)) if count > MAX_RULES else None


def _rule_text(document: Any, path: Path) -> str:
    if len(path) < 2:
        return ""
    rule = document[path[0]]
    rule = rule[path[1]] if path[0] == "rules" and isinstance(path[1], int) else {}
    keys = [str(rule[key]) for key in ("op", "dtype") if isinstance(rule, dict) and key in rule]
    return f" (in the rule for {', '.join(keys)})" if keys else ""


def _disorder(rule: Rule) -> Iterator[Fault]:
    """Yield what a schema cannot say: what ends below its start, and sizes that do not rise."""
    place: Path = ("rules", rule.number)
    if rule.world[1] < rule.world[0]:
        text = f"{name_of(place)}: world ends at {rule.world[1]}, below its start {rule.world[0]}"
        yield Fault(False, place, text)
    last = -1
    for at, entry in enumerate(rule.ranges):
        part = (*place, "ranges", at)
        if entry.max_bytes is None and at + 1 < len(rule.ranges):
            yield Fault(False, part, f"{name_of(part)}: only the last range may have no max_bytes")
        if entry.max_bytes is not None and entry.max_bytes <= last:
            text = f"{name_of(part)}: max_bytes {entry.max_bytes} is not a number above {last}"
            yield Fault(False, part, text)
        if any(point.sms >= after.sms for point, after in pairwise(entry.curve)):
            yield Fault(False, part, f"{name_of(part)}: the sms of its curve do not rise")
        last = entry.max_bytes or 0


# --- schema: the keywords of the plan's, of which each part has a type, values, or another part's name ----------------
# The library for it takes 0.25 s to load.

Schema = Mapping[str, Any]
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "null": (NoneType,),
}


class Fault(NamedTuple):
    """What is wrong with a part, or that it lacks a key."""

    lacks: bool
    path: Path
    text: str


def fault_of(document: Any, schema: Schema) -> Fault | None:
    """Return the first fault of a document; what is there and wrong comes before what is lacking."""
    faults = list(_faults(document, schema, schema["$defs"], ()))
    return min(faults, key=lambda fault: fault.lacks) if faults else None


def _faults(value: Any, schema: Schema, parts: Schema, path: Path) -> Iterator[Fault]:
    if "$ref" in schema:
        schema = parts[schema["$ref"].removeprefix("#/$defs/")]
    if not _fits(value, schema):
        shown = json.dumps(value)
        shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
        yield Fault(False, path, f"{name_of(path)} is {shown}, expected {schema['description']}")
    elif isinstance(value, dict):
        yield from _faults_of_object(value, schema, parts, path)
    elif isinstance(value, list):
        first = schema.get("prefixItems", ())
        for at, part in enumerate(value):
            yield from _faults(part, first[at] if at < len(first) else schema["items"], parts, (*path, at))


def _faults_of_object(value: Mapping[str, Any], schema: Schema, parts: Schema, path: Path) -> Iterator[Fault]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for key, part in value.items():
        wanted = known.get(key, others)
        if wanted is False:
            text = f"{name_of((*path, key))} is not known here; known: {', '.join(known)}"
            yield Fault(False, (*path, key), text)
        elif wanted is not True:
            yield from _faults(part, wanted, parts, (*path, key))
    for key in schema.get("required", ()):
        if key not in value:
            yield Fault(True, path, f'{name_of(path)} needs "{key}"')


def _fits(value: Any, schema: Schema) -> bool:
    """Whether a value has the type and lies within the bounds, whatever its parts are."""
    if "type" not in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return any(type(value) is type(each) and value == each for each in values)
    names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not any(type(value) in _TYPES[name] for name in names):
        return False
    if isinstance(value, list):
        return bool(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf))
    if isinstance(value, str):
        return len(value) >= int(schema.get("minLength", 0))
    if isinstance(value, (int, float)):
        return bool(schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf))
    return True
