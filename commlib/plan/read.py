"""Read: from a plan's text to its rules; schema.json says what is right, and an error names the file and the rule."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any, NoReturn

from commlib.errors import printable
from commlib.plan.rules import Rule
from commlib.plan.schema import Fault, Path, fault_of, name_of

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
    except json.JSONDecodeError as error:
        raise ValueError(f"plan {source}, {_syntax(text, error)}") from None
    except (RecursionError, ValueError) as error:  # depth, keys that are there twice, numbers that JSON has not
        raise ValueError(f"plan {source}: {error}") from None


def _syntax(text: str, error: json.JSONDecodeError) -> str:
    """Say what is wrong with the JSON itself; a file that ends too early has an error of its own."""
    rest = text[error.pos :].strip()
    cut = any(value.startswith(rest) for value in ("true", "false", "null", "-"))
    if error.msg.startswith("Unterminated") or cut:
        last = text.rstrip("\n").count("\n") + 1
        return f"line {last}: the file ends here, in the middle (truncated?); write it again or take a whole copy"
    return f"line {error.lineno}: {error.msg}"


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    keys = dict(pairs)
    if len(keys) < len(pairs):
        twice = next(key for at, (key, _) in enumerate(pairs) if key in dict(pairs[:at]))
        raise ValueError(f"{json.dumps(twice)} is there twice in {_start(pairs)}")
    return keys


def _start(pairs: list[tuple[str, Any]]) -> str:
    shown = json.dumps(dict(pairs))
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


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
        if entry.ci_bytes and entry.ci_bytes[1] < entry.ci_bytes[0]:
            yield Fault(False, part, f"{name_of(part)}: ci_bytes ends below its start")
        if entry.max_bytes is None and at + 1 < len(rule.ranges):
            yield Fault(False, part, f"{name_of(part)}: only the last range may have no max_bytes")
        if entry.max_bytes is not None and entry.max_bytes <= last:
            text = f"{name_of(part)}: max_bytes {entry.max_bytes} is not a number above {last}"
            yield Fault(False, part, text)
        if any(point.sms >= after.sms for point, after in pairwise(entry.curve)):
            yield Fault(False, part, f"{name_of(part)}: the sms of its curve do not rise")
        last = entry.max_bytes or 0
