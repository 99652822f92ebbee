"""Dataclasses as JSON: the objects that they make, and where those of a file do not fit."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
LONGEST = 60  # characters of a value in a fault


def to_json(value: Any) -> Any:
    """Return what JSON has of a dataclass; a field with a default is left out where it is None."""
    if is_dataclass(value):
        parts = ((field, to_json(getattr(value, field.name))) for field in fields(value))
        return {field.name: part for field, part in parts if part is not None or required(field)}
    if isinstance(value, Mapping):
        return {key: to_json(part) for key, part in value.items()}
    return [to_json(part) for part in value] if isinstance(value, list | tuple) else value


def required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def fault(value: Any, kind: Any, place: str) -> str:
    """Return where a value from JSON does not fit a type, and how; "" where it does. It may have more than that."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        faults = [fault(value, choice, place) for choice in arguments]
        return "" if "" in faults else max(faults, key=lambda text: text.index(":"))  # of all, what comes the furthest
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        hints = _hints(kind)
        missing = (
            f"{place}: {field.name!r} is missing"
            for field in fields(kind)
            if required(field) and field.name not in value
        )
        return next(missing, "") or _first(
            ((value[name], hint, f"{place}.{name}") for name, hint in hints.items() if name in value)
        )
    if origin in (list, tuple, Sequence) and isinstance(value, list):
        return _first((part, arguments[0], f"{place}[{at}]") for at, part in enumerate(value))
    if origin in (dict, Mapping) and isinstance(value, dict):
        return _first((part, arguments[1], f"{place}.{key}") for key, part in value.items())
    fits = value in arguments if origin is Literal else kind is Any or _is_plain(value, kind)
    return "" if fits else f"{place}: {repr(value)[:LONGEST]} is no {NAMES.get(kind) or kind}"


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _first(parts: Iterable[tuple[Any, Any, str]]) -> str:
    return next(filter(None, (fault(*part) for part in parts)), "")


def _is_plain(value: Any, kind: Any) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    return kind in NAMES and isinstance(value, int | float if kind is float else kind)
