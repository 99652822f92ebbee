"""Check: what is wrong with a plan document, and on which line; schema.json says what is right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any, NoReturn

from commlib.plan.lines import Lines, Path, lines_of

SCHEMA, VERSION = "commlib.plan", 1
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}
Fault = tuple[Path, str]


@cache
def schema() -> dict[str, Any]:
    """Return the JSON schema of a plan: the one table of keys and types, also for other tools."""
    text = (resources.files("commlib") / "plan" / "schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def read(text: str, source: str) -> tuple[dict[str, Any], Lines]:
    """Return a checked document and the lines of its parts; every fault is a ValueError that names file and line."""
    try:
        document = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"plan {source}, {_syntax(text, error)}") from None
    except (RecursionError, ValueError) as error:  # depth, and numbers that JSON has not or Python will not
        number = re.search(r"\bNaN\b|\bInfinity\b|\d{4000}", text)
        line = text.count("\n", 0, number.start() if number else 0) + 1
        raise ValueError(f"plan {source}, line {line}: {error}") from None
    try:
        lines = lines_of(text)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"plan {source}, {error}") from None
    check(document, source, lines)
    return document, lines


def check(document: Any, source: str, lines: Lines | None = None) -> None:
    """Raise a ValueError for the first fault of a document."""
    for path, text in _faults(document):
        line = None if lines is None else lines.get(path)
        where = f"plan {source}" if line is None else f"plan {source}, line {line}"
        raise ValueError(f"{where}: {text}")


def _faults(document: Any) -> Iterator[Fault]:
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = "a plan is an object" if not isinstance(document, dict) else f'its "schema" is not "{SCHEMA}"'
        place = ("schema",) if isinstance(document, dict) and "schema" in document else ()
        yield place, f"not a plan file ({found}); take a file that `commlib tune` wrote"
        return
    version = document.get("version")
    if isinstance(version, int) and version > VERSION:
        yield ("version",), f"version {version} is newer than the {VERSION} that this commlib reads; upgrade commlib"
        return
    yield from _wrong(document, schema(), ())
    for number, rule in enumerate(document["rules"]):
        yield from _disorder(rule, ("rules", number))


def _wrong(value: Any, rule: Mapping[str, Any], path: Path) -> Iterator[Fault]:
    """Yield where a value breaks its part of the schema; only the keywords that schema.json uses are known."""
    while "$ref" in rule:
        rule = schema()["$defs"][rule["$ref"].rpartition("/")[2]]
    if not _fits(value, rule):
        yield path, f"{name_of(path)} is {_shown(value)}, expected {rule['description']}"
    elif isinstance(value, dict):
        yield from _wrong_members(value, rule, path)
    elif isinstance(value, list):
        parts = rule.get("prefixItems") or [rule.get("items", {})] * len(value)
        for number, (part, expected) in enumerate(zip(value, parts, strict=True)):
            yield from _wrong(part, expected, (*path, number))


def _wrong_members(value: dict[str, Any], rule: Mapping[str, Any], path: Path) -> Iterator[Fault]:
    known, others = rule.get("properties", {}), rule.get("additionalProperties", True)
    for key, member in value.items():
        if key in known:
            yield from _wrong(member, known[key], (*path, key))
        elif others is False:
            yield (*path, key), f"{name_of((*path, key))} is not known here; known: {', '.join(known)}"
        elif others is not True:
            yield from _wrong(member, others, (*path, key))
    for key in rule.get("required", ()):
        if key not in value:
            yield path, f'{name_of(path)} needs "{key}"'


def _fits(value: Any, rule: Mapping[str, Any]) -> bool:
    """Whether a value alone, without its parts, is as the schema wants it."""
    kinds = rule.get("type", ())
    types = tuple(t for kind in ((kinds,) if isinstance(kinds, str) else kinds) for t in _TYPES[kind])
    if isinstance(value, bool):  # an int to Python, and none to JSON
        return not types and "const" not in rule and value in rule.get("enum", (value,))
    typed = not types or isinstance(value, types)
    listed = value == rule.get("const", value) and value in rule.get("enum", (value,))
    return typed and listed and _within(value, rule)


def _within(value: Any, rule: Mapping[str, Any]) -> bool:
    if isinstance(value, (int, float)):
        low, size, high = "minimum", value, "maximum"
    elif isinstance(value, str):
        low, size, high = "minLength", len(value), "maxLength"
    elif isinstance(value, list):
        low, size, high = "minItems", len(value), "maxItems"
    else:
        return True
    return bool(rule.get(low, size) <= size <= rule.get(high, size))


def _disorder(rule: Mapping[str, Any], path: Path) -> Iterator[Fault]:
    """Yield what a schema cannot say: numbers that have to rise."""
    low, high = rule.get("world", (1, None))
    if high is not None and high < low:
        yield (*path, "world"), f"{name_of((*path, 'world'))} ends at {high}, below its start {low}"
    last = -1
    for number, entry in enumerate(rule["ranges"]):
        place = (*path, "ranges", number)
        limit, interval = entry.get("max_bytes"), entry.get("ci_bytes")
        if interval and interval[0] > interval[1]:
            yield (*place, "ci_bytes"), f"{name_of((*place, 'ci_bytes'))} ends below its start"
        if limit is None and number + 1 < len(rule["ranges"]):
            yield place, f"{name_of(place)}: only the last range may have no max_bytes"
        if limit is not None and limit <= last:
            yield (*place, "max_bytes"), f"{name_of(place)}: max_bytes {limit} is not a number above {last}"
        last = last if limit is None else limit


def name_of(path: Path) -> str:
    """Return a path as text: rules[2].ranges[1].max_bytes."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{json.dumps(part)[1:-1]}" for part in path)
    return "".join(parts).removeprefix(".") or "the plan"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _syntax(text: str, error: json.JSONDecodeError) -> str:
    """Say what is wrong with the JSON itself; a file that ends too early is told from a faulty one."""
    rest = text[error.pos :].strip()
    words = any(word.startswith(rest) for word in ("true", "false", "null", "-"))
    if error.msg.startswith("Unterminated") or words:
        last = text.rstrip("\n").count("\n") + 1
        return f"line {last}: the file ends here, in the middle (truncated?); write it again or take a whole copy"
    return f"line {error.lineno}: {error.msg}"


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
