"""Read: from a plan's text to its rules; schema.json says what is right, and a fault is told with its line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any, NoReturn

from commlib.plan.lines import Path, line_of, lines_of, name_of
from commlib.plan.rules import Rule
from commlib.schema import Test, errors, printable, quick_test

SCHEMA, VERSION = "commlib.plan", 2
MAX_RULES = (1 << 16) - 1  # the native tables count them in 16 bits
TOO_MANY = f"it has {{}} rules; a plan has at most {MAX_RULES}"
Found = tuple[Path, str]


@cache
def schema() -> dict[str, Any]:
    """Return the JSON schema of a plan: the one table of keys and types, also for other tools."""
    text = (resources.files("commlib") / "plan" / "schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


@cache
def _is_right() -> Test:
    return quick_test(schema())


def parse(text: str, source: str) -> Any:
    """Return the document of a JSON text; a fault of its syntax is a ValueError that names the line."""
    try:
        return printable(json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique))
    except json.JSONDecodeError as error:
        raise ValueError(f"plan {source}, {_syntax(text, error)}") from None
    except KeyError:  # twice: the walk that knows lines says where
        try:
            lines_of(text)
        except ValueError as error:
            raise ValueError(f"plan {source}, {error}") from None
        raise
    except (RecursionError, ValueError) as error:  # depth, and numbers that JSON has not or Python will not
        number = re.search(r"\bNaN\b|\bInfinity\b|\d{4000}", text)
        line = text.count("\n", 0, number.start() if number else 0) + 1
        raise ValueError(f"plan {source}, line {line}: {error}") from None


def _syntax(text: str, error: json.JSONDecodeError) -> str:
    """Say what is wrong with the JSON itself; a file that ends too early is told from a faulty one."""
    rest = text[error.pos :].strip()
    words = any(word.startswith(rest) for word in ("true", "false", "null", "-"))
    if error.msg.startswith("Unterminated") or words:
        last = text.rstrip("\n").count("\n") + 1
        return f"line {last}: the file ends here, in the middle (truncated?); write it again or take a whole copy"
    return f"line {error.lineno}: {error.msg}"


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise KeyError
    return found


def read_rules(document: Any, source: str, text: str | None = None) -> tuple[Rule, ...]:
    """Return the rules of a document; a fault is a ValueError that names file, part and, of a text, the line."""
    rules: tuple[Rule, ...] = ()
    if _is_right()(document):
        rules = tuple(Rule.read(rule, source, at, text) for at, rule in enumerate(document["rules"]))
        fault: Found | None = next((found for rule in rules for found in _disorder(rule)), None)
    else:
        fault = next(_faults(document))
    if fault is not None:
        path, words = fault
        raise ValueError(f"plan {source}{line_of(text, path)}: {words}")
    return rules


def _disorder(rule: Rule) -> Iterator[Found]:
    """Yield what a schema cannot say: what ends below its start, and sizes that do not rise."""
    place: Path = ("rules", rule.number)
    if rule.world[1] < rule.world[0]:
        yield place, f"{name_of(place)}: world ends at {rule.world[1]}, below its start {rule.world[0]}"
    last = -1
    for at, entry in enumerate(rule.ranges):
        part = (*place, "ranges", at)
        if entry.ci_bytes and entry.ci_bytes[1] < entry.ci_bytes[0]:
            yield part, f"{name_of(part)}: ci_bytes ends below its start"
        if entry.max_bytes is None and at + 1 < len(rule.ranges):
            yield part, f"{name_of(part)}: only the last range may have no max_bytes"
        if entry.max_bytes is not None and entry.max_bytes <= last:
            yield part, f"{name_of(part)}: max_bytes {entry.max_bytes} is not a number above {last}"
        if any(point.sms >= after.sms for point, after in pairwise(entry.curve)):
            yield part, f"{name_of(part)}: the sms of its curve do not rise"
        last = entry.max_bytes or 0


def _faults(document: Any) -> Iterator[Found]:
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
    count = len(document["rules"]) if isinstance(document.get("rules"), list) else 0
    if count > MAX_RULES:
        yield ("rules",), TOO_MANY.format(count)
        return
    wrong = errors(document, schema())
    wrong.sort(key=lambda error: (error.validator == "required", [str(part).zfill(9) for part in error.absolute_path]))
    yield from (said for error in wrong for said in _said(error))
    yield (), "a number is written with a point where commlib/plan/schema.json wants a whole one"


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
        shown = json.dumps(value)
        shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
        yield path, f"{name_of(path)} is {shown}, expected {rule['description']}"
