"""Compare: for which calls and sizes two plans choose differently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, product

from commlib.plan.plan import Plan
from commlib.plan.rules import MAX_WORLD, MODES, PLACEMENTS, Query, Rule, keys_text, span_text

NOTHING = "no rule"
Span = tuple[int | None, int | None, str, str]  # above, up to, what runs in one plan, in the other


@dataclass(frozen=True)
class Difference:
    """Calls that two plans run differently: for which numbers of ranks, and at which sizes."""

    call: Query
    world: tuple[int, int]
    spans: tuple[Span, ...]

    def __str__(self) -> str:
        """Return the calls on a line, and below them a line for each span of sizes."""
        told = (f"  {span_text(above, up_to)}: {one} → {other}" for above, up_to, one, other in self.spans)
        return "\n".join([keys_text(self.call, self.world), *told])


def differences(one: Plan, other: Plan) -> list[Difference]:
    """Return what differs; a type, reduction or mode is named only where it makes a difference of its own."""
    ops = dict.fromkeys(rule.op for plan in (one, other) for rule in plan.rules)
    return [found for op in ops for placement in PLACEMENTS for found in _of(op, placement, one, other)]


def _of(op: str, placement: str, one: Plan, other: Plan) -> Iterator[Difference]:
    sides = [[rule for rule in plan.rules if (rule.op, rule.placement) == (op, placement)] for plan in (one, other)]
    rules = [rule for side in sides for rule in side]
    modes = MODES if any(rule.mode != "*" for rule in rules) else ("*",)
    named = sorted({rule.dtype for rule in rules} - {"*"}), sorted({rule.redop for rule in rules} - {"*"})
    for dtype, redop in product(*(["*", *names] for names in named)):
        call = Query(op, 0, dtype, redop, 1, placement, "*")
        found = [_unusual(replace(call, mode=mode), sides) for mode in modes]
        alike = [[replace(difference, call=call) for difference in of_mode] for of_mode in found]
        if all(of_mode == alike[0] for of_mode in alike):
            yield from alike[0]
        else:
            yield from (difference for of_mode in found for difference in of_mode)


def _unusual(call: Query, sides: Sequence[Sequence[Rule]]) -> list[Difference]:
    """Return the differences of one call; what all types and reductions have in common is said once, for "*"."""
    general = replace(call, dtype="*", redop="*")
    usual = {} if call == general else {d.world: d.spans for d in _by_world(general, sides)}
    return [d for d in _by_world(call, sides) if usual.get(d.world) != d.spans]


def _by_world(call: Query, sides: Sequence[Sequence[Rule]]) -> list[Difference]:
    """Return the differences of one call over all numbers of ranks, neighbours with the same ones together."""
    rules = [rule for side in sides for rule in side]
    starts = {1, *(rule.world[0] for rule in rules), *(rule.world[1] + 1 for rule in rules)} - {MAX_WORLD + 1}
    found: list[Difference] = []
    for low, after in pairwise([*sorted(starts), MAX_WORLD + 1]):
        one, other = ([rule for rule in side if rule.covers(replace(call, world=low))] for side in sides)
        spans = tuple(_spans(one, other))
        first = found.pop().world[0] if found and found[-1].spans == spans else low
        found.append(Difference(call, (first, after - 1), spans))
    return [difference for difference in found if difference.spans]


def _spans(one: Sequence[Rule], other: Sequence[Rule]) -> Iterator[Span]:
    """Yield the sizes where what runs differs; neighbours that agree are one."""
    limits = {entry.max_bytes for rule in (*one, *other) for entry in rule.ranges if entry.max_bytes is not None}
    choices = [(end, _choice(one, end), _choice(other, end)) for end in (*sorted(limits), None)]
    above = None
    for (ours, theirs), group in groupby(choices, key=lambda choice: choice[1:]):
        *_, (end, _, _) = group
        if ours != theirs:
            yield above, end, ours, theirs
        above = end


def _choice(rules: Iterable[Rule], up_to: int | None) -> str:
    """Return what runs at the largest size of a span: the first range there is, and what stands in for it."""
    for rule in rules:
        for entry in rule.ranges:
            if entry.max_bytes is None or (up_to is not None and up_to <= entry.max_bytes):
                choices = [entry.choice, *(each.choice for each in rule.fallback)]
                return ", else ".join(dict.fromkeys(choices))
    return NOTHING
