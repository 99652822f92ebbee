"""Dataclasses as JSON: the objects that they make, and the JSON schema of those."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

Number = Annotated[float, ("minimum", 0)]
Positive = Annotated[float, ("exclusiveMinimum", 0)]
Count = Annotated[int, ("minimum", 0)]
NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def to_json(value: Any) -> Any:
    """Return what JSON has of a dataclass; a field with a default is left out where it is None."""
    if is_dataclass(value):
        parts = ((field, to_json(getattr(value, field.name))) for field in fields(value))
        return {field.name: part for field, part in parts if part is not None or _required(field)}
    if isinstance(value, Mapping):
        return {key: to_json(part) for key, part in value.items()}
    return [to_json(part) for part in value] if isinstance(value, list | tuple) else value


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type: a dataclass, or what its fields may have."""
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        properties = {field.name: schema_of(hints[field.name]) for field in fields(kind)}
        required = [field.name for field in fields(kind) if _required(field)]
        return {"type": "object", "required": required, "properties": properties}
    if kind in NAMES:
        return {"type": NAMES[kind]}
    arguments = get_args(kind)
    origin = get_origin(kind)
    if origin is Annotated:
        return {**schema_of(arguments[0]), **dict(arguments[1:])}
    return SCHEMAS[origin](arguments) if origin in SCHEMAS else {}


def _array(arguments: Sequence[Any], **bounds: int) -> dict[str, Any]:
    return {"type": "array", "items": schema_of(arguments[0]), **bounds}


def _any_of(kinds: Sequence[Any]) -> dict[str, Any]:
    """Return the schema of a union; what may be nothing or one simple type is one schema."""
    schemas = [schema_of(kind) for kind in kinds]
    merged: dict[str, Any] = {}
    for schema in schemas:
        merged |= schema
    if all(isinstance(schema.get("type"), str) and "properties" not in schema for schema in schemas):
        return {**merged, "type": [schema["type"] for schema in schemas]}
    return {"anyOf": schemas}


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _object(arguments: Sequence[Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": schema_of(arguments[1])}


SCHEMAS: dict[Any, Callable[[Sequence[Any]], dict[str, Any]]] = {  # by what get_origin() returns
    Literal: lambda arguments: {"enum": list(arguments)},
    **dict.fromkeys((Union, types.UnionType), _any_of),
    **dict.fromkeys((list, Sequence), _array),
    tuple: lambda arguments: _array(arguments, minItems=2, maxItems=2),
    **dict.fromkeys((dict, Mapping), _object),
}
