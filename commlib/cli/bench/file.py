"""Files of `commlib bench`: reading one, with every fault named, and writing what was made of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

SCHEMA, VERSION = "commlib.bench", 1

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


@cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema of a document."""
    text = (resources.files("commlib.cli.bench") / "schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def read(path: Path) -> dict[str, Any]:
    """Read a document; every fault is a ValueError that names the file, the place in it and the remedy."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file; give the JSON that `commlib bench -o` writes") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    document = _parse(text, path)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = repr(document.get("schema")) if isinstance(document, dict) else f"a {type(document).__name__}"
        raise ValueError(f'{path} is not from `commlib bench`: its "schema" is {found}, not "{SCHEMA}"')
    if document.get("version") != VERSION:
        raise ValueError(_other_version(path, document.get("version")))
    if fault := next(_faults(document, schema(), ""), None):
        raise ValueError(f"{path}: {fault}; it was changed, or written by another commlib: measure again")
    return document


def write(path: Path, text: str) -> None:
    """Write a rendering; a place that cannot be written to is a ValueError."""
    try:
        path.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8", newline="")
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None


def _parse(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        whole = text.strip()
        # What begins as a document and has no end was cut short: a full disk, a copy that was stopped.
        if whole.startswith("{") and (error.pos >= len(text.rstrip()) or not whole.endswith("}")):
            raise ValueError(f"{path} ends in line {error.lineno}, in the middle: copy or measure it again") from None
        raise ValueError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deep to be from `commlib bench`") from None


def _other_version(path: Path, version: object) -> str:
    newer = isinstance(version, int) and version > VERSION
    remedy = "upgrade commlib" if newer else "measure again"
    return f"{path} has version {version!r}, but this commlib reads version {VERSION}: {remedy}"


def _faults(value: Any, rule: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield what a rendering would stumble over: the part of JSON Schema that says what must be there, and its type.

    What is there beyond that does no harm, and a newer commlib may add it.
    """
    if "$ref" in rule:
        name = rule["$ref"].rpartition("/")[2]
        yield from _faults(value, schema()["$defs"][name], where)
    place = where or "the document"
    allowed = rule.get("type", [])
    names = [allowed] if isinstance(allowed, str) else allowed
    if names and not any(_is(value, name) for name in names):
        yield f"{place} is {json.dumps(value)[:40]}, not {' or '.join(names)}"
        return
    if "enum" in rule and value not in rule["enum"]:
        yield f"{place} is {json.dumps(value)[:40]}, not one of {', '.join(rule['enum'])}"
    if value is not None and isinstance(value, int | float) and value < rule.get("minimum", value):
        yield f"{place} is {value}, less than {rule['minimum']}"
    if isinstance(value, dict):
        yield from _inside(value, rule, where)
    choices = [list(_faults(value, choice, where)) for choice in rule.get("anyOf", ())]
    if choices and all(choices):
        yield choices[-1][0]
    if isinstance(value, list):
        if not rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", len(value)):
            yield f"{place} has {len(value)} items, not {rule['minItems']}"
        for index, item in enumerate(value):
            yield from _faults(item, rule.get("items", {}), f"{where}[{index}]")


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _inside(value: dict[str, Any], rule: Mapping[str, Any], where: str) -> Iterator[str]:
    for key in rule.get("required", ()):
        if key not in value:
            yield f'{where or "the document"} has no "{key}"'
    for key, part in rule.get("properties", {}).items():
        if key in value:
            yield from _faults(value[key], part, f"{where}.{key}" if where else key)
    other = rule.get("additionalProperties")
    if isinstance(other, dict):
        for key in value.keys() - rule.get("properties", {}).keys():
            yield from _faults(value[key], other, f"{where}.{key}" if where else key)
