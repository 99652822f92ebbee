"""Schema: whether a document is as a JSON Schema wants it, at once; and what is wrong with it, by a slow library.

Whoever wrote a document also wrote its texts, which go to a terminal: what that would obey is taken out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain, repeat
from types import NoneType
from typing import Any

Rule = Mapping[str, Any]
Test = Callable[[Any], bool]


def errors(document: Any, schema: Rule) -> list[Any]:
    """Return what is wrong, as the library says it: `absolute_path`, `validator`, `instance`, `schema` of each."""
    import jsonschema  # takes 0.25 s to load

    return list(jsonschema.Draft202012Validator(schema).iter_errors(document))


def printable(document: Any) -> Any:
    """Return a document whose texts have no control characters, but for ends of lines and tabs."""
    if isinstance(document, dict):
        return {printable(key): printable(value) for key, value in document.items()}
    if isinstance(document, list):
        return [printable(value) for value in document]
    if not isinstance(document, str) or document.isprintable():
        return document
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in document)


def quick_test(schema: Rule) -> Test:
    """Return a test that documents without errors pass: for `init()`, which has no time for the library.

    It knows the words of the plan's schema, of which each part has a type, values, or another part's name.
    """
    return _test(schema, schema["$defs"])


def _test(rule: Rule, parts: Rule) -> Test:
    if "$ref" in rule:
        return _test(parts[rule["$ref"].removeprefix("#/$defs/")], parts)
    if "type" not in rule:
        values = rule["enum"] if "enum" in rule else [rule["const"]]
        return lambda value: any(type(value) is type(each) and value == each for each in values)
    names = [rule["type"]] if isinstance(rule["type"], str) else rule["type"]
    tests = {kind: make(rule, parts) for name in names for kind, make in _KINDS[name].items()}
    return lambda value: type(value) in tests and tests[type(value)](value)


def _object(rule: Rule, parts: Rule) -> Test:
    needed = set(rule.get("required", ()))
    known = {key: _test(part, parts) for key, part in rule.get("properties", {}).items()}
    more = rule.get("additionalProperties", True)
    other = (lambda value: more) if isinstance(more, bool) else _test(more, parts)

    def test(value: dict[str, Any]) -> bool:
        for key, part in value.items():  # faster than all()
            if not known.get(key, other)(part):
                return False
        return needed <= value.keys()

    return test


def _array(rule: Rule, parts: Rule) -> Test:
    least, most = rule.get("minItems", 0), rule.get("maxItems", math.inf)
    first = [_test(part, parts) for part in rule.get("prefixItems", ())]
    rest = _test(rule["items"], parts) if "items" in rule else _any
    return lambda value: (
        least <= len(value) <= most
        and all(test(part) for test, part in zip(chain(first, repeat(rest)), value, strict=False))
    )


def _number(rule: Rule, parts: Rule) -> Test:
    least, most = rule.get("minimum", -math.inf), rule.get("maximum", math.inf)
    return lambda value: least <= value <= most


def _string(rule: Rule, parts: Rule) -> Test:
    least = rule.get("minLength", 0)
    return lambda value: len(value) >= least


def _any(value: Any) -> bool:
    return True


# By the name of a type: what it is in Python, and what makes the test of its values.
_KINDS: dict[str, dict[type, Callable[[Rule, Rule], Test]]] = {
    "object": {dict: _object},
    "array": {list: _array},
    "string": {str: _string},
    "integer": {int: _number},
    "number": {int: _number, float: _number},
    "null": {NoneType: lambda rule, parts: _any},
}
