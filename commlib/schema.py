"""Schema: the one place that checks documents against a JSON Schema; its library takes 0.25 s to load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def errors(document: Any, schema: Mapping[str, Any]) -> list[Any]:
    """Return what is wrong, as the library says it: `absolute_path`, `validator`, `instance`, `schema` of each."""
    import jsonschema

    return list(jsonschema.Draft202012Validator(schema).iter_errors(document))
