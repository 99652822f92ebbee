"""Pins: rules that leave no choice, on top of a plan, with the parameters that the plan has for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from commlib.plan.rules import MAX_WORLD, PLACEMENTS, Range, Rule

Span = tuple[int, int | None, Range]


def range_of(max_bytes: int | None, algorithm: str, params: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return one range of a document."""
    return {"max_bytes": max_bytes, "algorithm": algorithm, "params": dict(params or {})}


def pins(
    algorithms: Mapping[str, str], base: Sequence[Rule], params: Mapping[str, int] | None = None
) -> list[dict[str, Any]]:
    """Return the rules that pin collectives to algorithms, with `params`, else with those that `base` has for them."""
    return [rule for op, name in algorithms.items() for rule in _pins_of(op, name, base, params)]


def _pins_of(
    op: str, algorithm: str, base: Sequence[Rule], params: Mapping[str, int] | None
) -> Iterator[dict[str, Any]]:
    # Each stands in both tables, and only one can serve: where it cannot, the base plan's choice stands.
    for placement in PLACEMENTS:
        rules = [rule for rule in base if (rule.op, rule.placement) == (op, placement)]
        if params is None and any(entry.params for _, _, entry in _spans(rules, algorithm)):
            yield from (_same_keys(rule, _tuned(rule, algorithm, rules)) for rule in rules)
        yield {"op": op, "placement": placement, "ranges": [range_of(None, algorithm, params)]}


def _same_keys(rule: Rule, ranges: list[dict[str, Any]]) -> dict[str, Any]:
    keys = {"dtype": rule.dtype, "redop": rule.redop, "mode": rule.mode}
    low, high = rule.world
    return {
        "op": rule.op,
        "placement": rule.placement,
        **{key: value for key, value in keys.items() if value != "*"},
        "world": [low, None if high == MAX_WORLD else high],
        "ranges": ranges,
    }


def _tuned(rule: Rule, algorithm: str, rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Cut the sizes as the rule does, each range with the parameters of the nearest that runs the algorithm."""
    alike = [other for other in rules if other.world[0] <= rule.world[1] and rule.world[0] <= other.world[1]]
    spans = _spans([rule], algorithm) or _spans(alike, algorithm)
    ranges: list[dict[str, Any]] = []
    for low, high, _ in _cut(rule):
        found = range_of(high, algorithm, _nearest(spans, low, high))
        if ranges and ranges[-1]["params"] == found["params"]:
            ranges.pop()
        ranges.append(found)
    ranges[-1]["max_bytes"] = None  # a pin leaves no size out
    return ranges


def _nearest(spans: Sequence[Span], low: int, high: int | None) -> Mapping[str, int]:
    """Return the parameters of the span whose sizes are the nearest, as a ratio."""

    def distance(span: Span) -> float:
        start, end, _ = span
        if end is not None and end < low:
            return low / max(1, end)
        if high is not None and high < start:
            return start / max(1, high)
        return 0.0

    return min(spans, key=distance)[2].params if spans else {}


def _cut(rule: Rule) -> Iterator[Span]:
    low = 0
    for entry in rule.ranges:
        yield low, entry.max_bytes, entry
        low = (entry.max_bytes or 0) + 1


def _spans(rules: Iterable[Rule], algorithm: str) -> list[Span]:
    return [span for rule in rules for span in _cut(rule) if span[2].algorithm == algorithm]
