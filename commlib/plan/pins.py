"""Pins: rules that leave no choice, on top of a plan, with the parameters that the plan has for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from commlib.plan.rules import PLACEMENTS, Rule


class Span(NamedTuple):
    """Sizes from `low` to `high`, and the parameters there."""

    low: float
    high: float
    params: Mapping[str, int]


def pins(
    op: str, algorithm: str, base: Sequence[Rule], params: Mapping[str, int] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield rules that pin a collective to an algorithm, with `params`, else with those that `base` has for it."""
    # Each stands in both tables, and only one can serve: where it cannot, the base plan's choice stands.
    for placement in PLACEMENTS:
        rules = [rule for rule in base if (rule.op, rule.placement) == (op, placement)]
        if params is None and any(span.params for span in _spans(rules, algorithm)):
            first: dict[str, Rule] = {}
            for rule in rules:  # one pin for calls that several rules speak of: pins of pins do not multiply
                first.setdefault(rule.keys, rule)
            for rule in first.values():
                yield {**rule.document(), "ranges": _tuned(rule, algorithm, rules), "fallback": []}
        yield {"op": op, "placement": placement, "ranges": [{"algorithm": algorithm, "params": dict(params or {})}]}


def _tuned(rule: Rule, algorithm: str, rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Cut the sizes as the rule does, each range with the parameters of the nearest that runs the algorithm."""
    alike = [other for other in rules if other.world[0] <= rule.world[1] and rule.world[0] <= other.world[1]]
    known = _spans([rule], algorithm) or _spans(alike, algorithm) or [Span(0, math.inf, {})]
    ranges: list[dict[str, Any]] = []
    for low, high, _ in _spans([rule]):
        params = dict(min(known, key=lambda span: _distance(span, low, high)).params)
        if ranges and ranges[-1]["params"] == params:
            ranges.pop()
        ranges.append({"max_bytes": high, "algorithm": algorithm, "params": params})
    ranges[-1]["max_bytes"] = None  # a pin leaves no size out
    return ranges


def _distance(span: Span, low: float, high: float) -> float:
    """Return how far a span is from other sizes, as a ratio; 1 where they meet."""
    return max(1.0, low / max(1, span.high), span.low / max(1, high))


def _spans(rules: Iterable[Rule], algorithm: str = "") -> list[Span]:
    return [
        Span(0 if above is None else above + 1, math.inf if entry.max_bytes is None else entry.max_bytes, entry.params)
        for rule in rules
        for above, entry in rule.spans()
        if algorithm in ("", entry.algorithm)
    ]
