"""Faults: what is wrong with a plan document, in words and with its line; schema.json says what is right."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from typing import Any

from commlib.plan.lines import Path, line_of
from commlib.plan.rules import Fault
from commlib.schema import errors

SCHEMA, VERSION = "commlib.plan", 2
Found = tuple[Path, str]


@cache
def schema() -> dict[str, Any]:
    """Return the JSON schema of a plan: the one table of keys and types, also for other tools."""
    text = (resources.files("commlib") / "plan" / "schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def error_of(document: Any, source: str, text: str | None = None, fault: Fault | None = None) -> ValueError | None:
    """Return the error for a document: the first thing that its schema finds, else the fault that it cannot say."""
    own = [] if fault is None else [(fault.path, f"{name_of(fault.path)}: {fault}")]
    for path, words in (*_found(document), *own):
        return ValueError(f"plan {source}{line_of(text, path)}: {words}")
    return None


def _found(document: Any) -> Iterator[Found]:
    """Yield what is wrong; what is there and wrong comes before what is lacking."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = "a plan is an object" if not isinstance(document, dict) else f'its "schema" is not "{SCHEMA}"'
        yield ("schema",), f"not a plan file ({found}); take a file that `commlib tune` wrote"
        return
    version = document.get("version")
    if type(version) is int and version != VERSION:
        newer = version > VERSION
        remedy = "upgrade commlib" if newer else "run `commlib tune` again"
        than = f"{'newer' if newer else 'older'} than the {VERSION} that this commlib reads"
        yield ("version",), f"version {version} is {than}; {remedy}"
        return
    wrong = errors(document, schema())
    wrong.sort(key=lambda error: (error.validator == "required", _order(error.absolute_path)))
    yield from (said for error in wrong for said in _said(error))


def _said(error: Any) -> Iterator[Found]:
    """Yield what one error of the validator says, in the words of the schema's descriptions."""
    path, value, rule = tuple(error.absolute_path), error.instance, error.schema
    if error.validator == "additionalProperties":
        known = rule["properties"]
        for key in (key for key in value if key not in known):
            yield (*path, key), f"{name_of((*path, key))} is not known here; known: {', '.join(known)}"
    elif error.validator == "required":
        lacking = next(key for key in error.validator_value if key not in value)
        yield path, f'{name_of(path)} needs "{lacking}"'
    else:
        yield path, f"{name_of(path)} is {_shown(value)}, expected {rule['description']}"


def _order(path: Iterable[str | int]) -> list[tuple[bool, int, str]]:
    """Order by place: the keys of an object by name, the elements of a list by number."""
    return [(isinstance(part, int), part if isinstance(part, int) else 0, str(part)) for part in path]


def name_of(path: Path) -> str:
    """Return a path as text: rules[2].ranges[1].max_bytes."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{json.dumps(part)[1:-1]}" for part in path)
    return "".join(parts).removeprefix(".") or "the plan"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
