"""Decide: which entry of which rule a call gets, and which ones were passed over because they cannot serve it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from commlib.plan.rules import Query, Range, Rule


@dataclass(frozen=True)
class Facts:
    """What is true of the algorithms that rules name; told from above, where their tables are.

    `refusal(query, algorithm)` says why it cannot serve a call, or None; `symmetric(op, algorithm)` whether it is for
    tensors in symmetric memory alone; `remark(op, algorithm)` what else `explain` should say of it, "" if nothing.
    """

    refusal: Callable[[Query, str], str | None] = lambda query, algorithm: None
    symmetric: Callable[[str, str], bool] = lambda op, algorithm: True
    remark: Callable[[str, str], str] = lambda op, algorithm: ""


ALL_SERVE = Facts()


@dataclass(frozen=True)
class Decision:
    """An entry, where it stands, and what stood before it and could not serve."""

    rule: Rule
    entry: Range
    at: int  # the rule's range for the size
    place: str  # rules[2][0], rules[2].fallback[1]
    passed: tuple[str, ...]


def decide(rules: Sequence[Rule], query: Query, facts: Facts = ALL_SERVE) -> Decision | None:
    """Return what the first rule with a range for a call has: that range, else its first fallback.

    An entry that cannot serve the call is passed over; a rule of which none can leaves it to the next. A symmetric
    rule only says where a symmetric algorithm pays: if it names another one, the plain rules decide.
    """
    passed: list[str] = []
    for rule in rules:
        if not rule.covers(query) or (at := rule.at(query.num_bytes)) is None:
            continue
        for place, entry in _entries(rule, at):
            if query.placement == "symmetric" and not facts.symmetric(query.op, entry.algorithm):
                return _on_plain(rules, query, facts, passed)
            reason = facts.refusal(query, entry.algorithm)
            if query.num_bytes % entry.align:
                reason = f"{query.num_bytes} bytes are no multiple of {entry.align}"
            if reason is None:
                return Decision(rule, entry, at, place, tuple(dict.fromkeys(passed)))
            passed.append(f"{entry.algorithm}: {reason}")
    return _on_plain(rules, query, facts, passed) if query.placement == "symmetric" else None


def _entries(rule: Rule, at: int) -> Iterator[tuple[str, Range]]:
    yield f"rules[{rule.number}][{at}]", rule.ranges[at]
    yield from ((f"rules[{rule.number}].fallback[{n}]", entry) for n, entry in enumerate(rule.fallback))


def _on_plain(rules: Sequence[Rule], query: Query, facts: Facts, passed: list[str]) -> Decision | None:
    found = decide(rules, replace(query, placement="plain"), facts)
    return found and replace(found, passed=tuple(dict.fromkeys([*passed, *found.passed])))
