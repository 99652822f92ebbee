"""Read: a plan's text and document; rules check themselves, and what they refuse is looked up in the schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from commlib.plan.faults import SCHEMA, VERSION, error_of
from commlib.plan.lines import lines_of
from commlib.plan.rules import Fault, Rule, read_rule

MAX_RULES = (1 << 16) - 1  # the native tables count them in 16 bits
_REQUIRED = {"schema", "version", "rules"}
_KEYS = _REQUIRED | {"created", "commlib", "fingerprint", "method"}


def parse(text: str, source: str) -> Any:
    """Return the document of a JSON text; a fault of its syntax is a ValueError that names the line."""
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
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


def read_rules(document: Any, source: str, text: str | None = None) -> tuple[Rule, ...]:
    """Return the rules of a document; a fault is a ValueError that names file, part and, of a text, the line."""
    part: tuple[str | int, ...] = ()
    rules = []
    try:
        _check_head(document)
        if len(document["rules"]) > MAX_RULES:
            raise ValueError(f"plan {source} has {len(document['rules'])} rules; a plan has at most {MAX_RULES}")
        for at, rule in enumerate(document["rules"]):
            part = ("rules", at)
            rules.append(read_rule(rule, at, source, text))
    except Fault as fault:
        error = error_of(document, source, text, fault.inside(*part))
        assert error is not None
        raise error from None
    return tuple(rules)


def _check_head(document: Any) -> None:
    right = (
        isinstance(document, dict)
        and _REQUIRED <= document.keys() <= _KEYS
        and (document["schema"], type(document["version"]), document["version"]) == (SCHEMA, int, VERSION)
        and isinstance(document["rules"], list)
        and all(isinstance(document.get(key, {}), dict) for key in ("fingerprint", "method"))
        and {"backend", "device"} <= document.get("fingerprint", {"backend": "", "device": ""}).keys()
    )
    if not right:
        raise Fault("is not as commlib/plan/schema.json wants it")


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


def _unique(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise KeyError
    return found
