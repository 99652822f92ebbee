"""Compare: for which calls and sizes two plans choose differently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from commlib.plan.plan import Plan
from commlib.plan.rules import MAX_WORLD, MODES, PLACEMENTS, Rule, keys_text, span_text

NOTHING = "no rule"


@dataclass(frozen=True)
class Difference:
    """Calls that two plans run differently: the sizes above one and up to another, and what runs in each plan."""

    op: str
    placement: str
    dtype: str
    redop: str
    mode: str
    world: tuple[int, int]
    spans: tuple[tuple[int | None, int | None, str, str], ...]

    def __str__(self) -> str:
        """Return the calls on a line, and below them a line for each span of sizes."""
        keys = keys_text(self.op, self.placement, self.dtype, self.redop, self.mode, self.world)
        told = (f"  {span_text(above, up_to)}: {one} → {other}" for above, up_to, one, other in self.spans)
        return "\n".join([keys, *told])


def differences(one: Plan, other: Plan) -> list[Difference]:
    """Return what differs; a type, reduction or mode is named only where it makes a difference of its own."""
    ops = dict.fromkeys(rule.op for plan in (one, other) for rule in plan.rules)
    return [found for op in ops for placement in PLACEMENTS for found in _of(op, placement, one, other)]


def _of(op: str, placement: str, one: Plan, other: Plan) -> Iterator[Difference]:
    sides = [[rule for rule in plan.rules if (rule.op, rule.placement) == (op, placement)] for plan in (one, other)]
    rules = [rule for side in sides for rule in side]
    modes = MODES if any(rule.mode != "*" for rule in rules) else ("*",)
    for dtype, redop in product(_named(rule.dtype for rule in rules), _named(rule.redop for rule in rules)):
        call = Difference(op, placement, dtype, redop, "*", (1, MAX_WORLD), ())
        found = [_unusual(replace(call, mode=mode), sides, rules) for mode in modes]
        same = [replace(difference, mode="*") for difference in found[0]]
        if all([replace(difference, mode="*") for difference in of_mode] == same for of_mode in found):
            yield from same
        else:
            yield from (difference for of_mode in found for difference in of_mode)


def _unusual(call: Difference, sides: list[list[Rule]], rules: list[Rule]) -> list[Difference]:
    """Return the differences of one call; what all types and reductions have in common is said once, for "*"."""
    general = replace(call, dtype="*", redop="*")
    usual = {} if call == general else {d.world: d.spans for d in _by_world(general, sides, rules)}
    return [d for d in _by_world(call, sides, rules) if usual.get(d.world) != d.spans]


def _named(values: Iterable[str]) -> list[str]:
    return ["*", *sorted({value for value in values if value != "*"})]


def _by_world(call: Difference, sides: list[list[Rule]], rules: list[Rule]) -> list[Difference]:
    """Return the differences of one call over all numbers of ranks, neighbours with the same ones together."""
    starts = sorted({1, *(rule.world[0] for rule in rules), *(rule.world[1] + 1 for rule in rules)})
    found: list[Difference] = []
    for low, after in zip(starts, [*starts[1:], MAX_WORLD + 1], strict=True):
        if low > MAX_WORLD:
            continue
        spans = tuple(_spans(*(_deciding(side, call, low) for side in sides)))
        here = replace(call, world=(low, after - 1), spans=spans)
        if found and found[-1].world[1] == low - 1 and found[-1].spans == spans:
            here = replace(here, world=(found.pop().world[0], after - 1))
        found.append(here)
    return [difference for difference in found if difference.spans]


def _deciding(rules: Iterable[Rule], call: Difference, world: int) -> list[Rule]:
    return [rule for rule in rules if rule.covers(call.dtype, call.redop, call.placement, call.mode, world)]


def _spans(one: list[Rule], other: list[Rule]) -> Iterator[tuple[int | None, int | None, str, str]]:
    """Yield (above, up to, what runs in one, in the other) where these differ; neighbours that agree are one."""
    entries = [entry for rule in (*one, *other) for entry in rule.ranges]
    ends = sorted({entry.max_bytes for entry in entries if entry.max_bytes is not None})
    open_span: tuple[int | None, int | None, str, str] | None = None
    above: int | None = None
    for end in (*ends, None):
        names = _choice(one, end), _choice(other, end)
        if open_span and open_span[2:] == names:
            open_span = (open_span[0], end, *names)
        else:
            if open_span and open_span[2] != open_span[3]:
                yield open_span
            open_span = (above, end, *names)
        above = end
    if open_span and open_span[2] != open_span[3]:
        yield open_span


def _choice(rules: list[Rule], up_to: int | None) -> str:
    """Return what runs at the largest size of a span: the first range there is, and what stands in for it."""
    for rule in rules:
        for entry in rule.ranges:
            if entry.max_bytes is None or (up_to is not None and up_to <= entry.max_bytes):
                return ", else ".join(
                    each.choice for each in (entry, *rule.fallback) if each is entry or each.choice != entry.choice
                )
    return NOTHING
