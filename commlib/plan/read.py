"""Read: from a plan's text to its rules; schema.json says what is right, and an error names the file and the rule."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from itertools import pairwise
from types import NoneType
from typing import Any, NamedTuple, NoReturn

from commlib.errors import printable
from commlib.plan.rules import Path, Rule, name_of

SCHEMA, VERSION = "commlib.plan", 2
MAX_RULES = (1 << 16) - 1  # the native tables count them in 16 bits
TOO_MANY = f"it has {{}} rules; a plan has at most {MAX_RULES}"


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
