"""Schema: what of a document is not as a JSON Schema wants it, at once; the library for it takes 0.25 s to load.

It knows the keywords of the plan's schema, of which each part has a type, values, or another part's name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, NamedTuple

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]
"""A part of a document: ("rules", 2, "ranges", 0)."""

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


def name_of(path: Path) -> str:
    """Return a path as text: rules[2].ranges[1].max_bytes."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{json.dumps(part)[1:-1]}" for part in path)
    return "".join(parts).removeprefix(".") or "the plan"


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
