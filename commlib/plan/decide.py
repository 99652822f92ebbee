"""Decide: which entry of which rule a call gets, and which ones were passed over because they cannot serve it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from commlib.counts import counted
from commlib.plan.rules import Point, Query, Range, Rule

KNEE_SMS, KNEE_WEIGHT = 16, 4  # as in csrc/plan/table.cc: the fewest, and what one of them costs of the time


@dataclass(frozen=True)
class Facts:
    """What is true of the algorithms that rules name; told from above, where their tables are.

    `refusal(query, algorithm)` says why it cannot serve a call, or None; `symmetric(op, algorithm)` whether it is for
    tensors in symmetric memory alone; `remark(op, algorithm)` what else `explain` should say of it, "" if nothing;
    `sms(op, algorithm, params)` the multiprocessors that it takes at most, and those that a limit can leave to it.
    `multiprocessors` has the smallest GPU; where none is known, those of an H100 or H200.
    """

    refusal: Callable[[Query, str], str | None] = lambda query, algorithm: None
    symmetric: Callable[[str, str], bool] = lambda op, algorithm: True
    remark: Callable[[str, str], str] = lambda op, algorithm: ""
    sms: Callable[[str, str, Mapping[str, int]], tuple[int, int]] = lambda op, algorithm, params: (0, 0)
    multiprocessors: int = 132

    def most_sms(self, op: str, entry: Range | Point) -> int:
        """Return the multiprocessors that an entry takes at most; 0: none, or nobody knows."""
        return self.sms(op, entry.algorithm, entry.params)[0]

    def can_take(self, op: str, entry: Range | Point, max_sms: int) -> bool:
        """Whether it runs on so few."""
        return self.sms(op, entry.algorithm, entry.params)[1] <= max_sms


ALL_SERVE = Facts()


@dataclass(frozen=True)
class Decision:
    """An entry, where it stands, and what stood before it and could not serve."""

    rule: Rule
    entry: Range
    at: int  # the rule's range for the size
    place: str  # rules[2][0], rules[2].fallback[1]
    passed: tuple[str, ...]
    slower: float = 0.0  # than the range's own, of a point of its curve


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
                reason = f"{query.num_bytes} B is no multiple of {entry.align}"
            if reason is None:
                return Decision(rule, entry, at, place, tuple(dict.fromkeys(passed)))
            passed.append(f"{entry.algorithm}: {reason}")
    return _on_plain(rules, query, facts, passed) if query.placement == "symmetric" else None


def _entries(rule: Rule, at: int) -> Iterator[tuple[str, Range]]:
    yield f"rules[{rule.number}][{at}]", rule.ranges[at]
    yield from _fallbacks(rule)


def _fallbacks(rule: Rule) -> Iterator[tuple[str, Range]]:
    yield from ((f"rules[{rule.number}].fallback[{n}]", entry) for n, entry in enumerate(rule.fallback))


def _on_plain(rules: Sequence[Rule], query: Query, facts: Facts, passed: list[str]) -> Decision | None:
    found = decide(rules, replace(query, placement="plain"), facts)
    return found and replace(found, passed=tuple(dict.fromkeys([*passed, *found.passed])))


def decide_within(rules: Sequence[Rule], query: Query, max_sms: int, facts: Facts = ALL_SERVE) -> Decision | None:
    """Return the same for a call that takes so many multiprocessors at most, as csrc/plan/table.cc finds it.

    What is best on so few, as far as it was measured; else what can be cut down to so few, of this range or of the one
    with the nearest sizes; None if nothing can.
    """
    found = decide(rules, query, facts)
    if found is None or facts.most_sms(query.op, found.entry) <= max_sms:
        return found
    points = _points(found, query, facts)
    for other in symmetric_points(rules, query, found, facts):  # each before the first that takes longer
        at = next((at for at, (point, _) in enumerate(points) if point.slower > other[0].slower), len(points))
        points.insert(at, other)
    within = [few for few in points if few[0].sms <= max_sms] or points[-1:]
    if within and facts.can_take(query.op, within[0][0], max_sms):
        return within[0][1]
    queries = [query, replace(query, placement="plain")] if query.placement == "symmetric" else [query]
    others = [other for kind in queries for other in _able(rules, kind, max_sms, facts)]
    if not others:
        return None
    _, nearest = min(others, key=lambda other: other[0])
    if nearest.entry is found.entry:
        return found
    reason = f"{found.entry.algorithm}: it takes more than {counted(max_sms, 'multiprocessor')}"
    return replace(nearest, passed=(*found.passed, reason))


def decide_sparing(rules: Sequence[Rule], query: Query, facts: Facts = ALL_SERVE) -> Decision | None:
    """Return the same for a call that spares the GPU: the knee of the curve, as csrc/plan/table.cc finds it."""
    if (found := decide(rules, query, facts)) is None:
        return None

    def cost(time: int, sms: int) -> int:
        return time * (facts.multiprocessors + KNEE_WEIGHT * min(sms, facts.multiprocessors))

    costs = [(cost(1000, facts.most_sms(query.op, found.entry)), found)]
    for point, few in [*_points(found, query, facts), *symmetric_points(rules, query, found, facts)]:
        sms = facts.most_sms(query.op, point)
        if sms >= KNEE_SMS:
            costs.append((cost(point.time, sms), few))
    return min(costs, key=lambda each: each[0])[1]


def _points(found: Decision, query: Query, facts: Facts) -> list[tuple[Point, Decision]]:
    """Return what is best on fewer multiprocessors than an entry takes, the most of them first, and what it decides."""
    entry = found.entry
    places = {point.sms: f"{found.place}.curve[{at}]" for at, point in enumerate(entry.curve)}
    return [
        (point, replace(found, entry=entry.on(point), place=places[point.sms], slower=point.slower))
        for point in entry.fewer(facts.most_sms(query.op, entry))
        if facts.refusal(query, point.algorithm) is None
    ]


def symmetric_points(
    rules: Sequence[Rule], query: Query, found: Decision, facts: Facts
) -> list[tuple[Point, Decision]]:
    """Return the same of the symmetric range that left a call to the plain rules, by which an entry was found."""
    for rule in rules if query.placement == "symmetric" else ():
        if not rule.covers(query) or (at := rule.at(query.num_bytes)) is None:
            continue
        entry = rule.ranges[at]
        if facts.symmetric(query.op, entry.algorithm):
            return []
        return _points(Decision(rule, entry, at, f"rules[{rule.number}][{at}]", found.passed), query, facts)
    return []


def _able(rules: Sequence[Rule], query: Query, max_sms: int, facts: Facts) -> Iterator[tuple[float, Decision]]:
    """Yield what can be cut down to so few multiprocessors, and how far its sizes are from the call's."""
    for rule in rules:
        if not rule.covers(query):
            continue
        for at, (above, here) in enumerate(rule.spans()):
            low, high = 0 if above is None else above + 1, math.inf if here.max_bytes is None else here.max_bytes
            far = max(1.0, (low + 1) / (query.num_bytes + 1), (query.num_bytes + 1) / (high + 1))
            for place, entry in _entries(rule, at):
                if query.placement == "symmetric" and not facts.symmetric(query.op, entry.algorithm):
                    break  # only a name: the plain rules decide
                if facts.refusal(query, entry.algorithm) is not None or query.num_bytes % entry.align:
                    continue
                # One that cannot be cut down has the first fallback of all sizes that can.
                for where, able in [(place, entry), *((w, e) for w, e in _fallbacks(rule) if e.align == 1)]:
                    if facts.refusal(query, able.algorithm) is None and facts.can_take(query.op, able, max_sms):
                        yield far, Decision(rule, able, at, where, ())
                        break
                if entry.align == 1:
                    break
