"""Flat: a plan's rules as the native tables take them today, with a rule for each type that needs a fallback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from commlib.plan.decide import Facts, Query, resolved
from commlib.plan.plan import Plan
from commlib.plan.rules import MODES, PLACEMENTS, Rule


def flattened(plan: Plan, world: int, facts: Facts, dtypes: Sequence[str], redops: Sequence[str]) -> Plan:
    """Return the plan for one number of ranks without fallbacks: the first rule that covers a call has what runs it."""
    rules = plan.rules_of(world)
    modes = MODES if any(rule.mode != "*" for rule in rules) else ("*",)
    found: list[Rule] = []
    for op, placement, mode in product(dict.fromkeys(rule.op for rule in rules), PLACEMENTS, modes):
        own = [rule for rule in rules if rule.op == op and rule.mode in ("*", mode)]
        if any(rule.placement == placement for rule in own):
            call = Query(op, 0, "float32", "sum", world, placement, "eager" if mode == "*" else mode)
            found += _of_call(own, call, facts, product(dtypes, redops), mode)
    made = plan._with()
    made.rules = tuple(found)
    return made


def _of_call(
    rules: list[Rule], call: Query, facts: Facts, types: Iterator[tuple[str, str]], mode: str
) -> Iterator[Rule]:
    """Yield a rule for each type and reduction that runs something else, and then the one for all."""
    names = {entry.algorithm for rule in rules for entry in (*rule.ranges, *rule.fallback)}
    general = resolved(rules, call, facts)
    known = {_kind(rules, call, names, facts): general}
    first = rules[0]
    same = {"op": call.op, "placement": call.placement, "mode": mode, "world": (call.world, call.world)}
    named = {(rule.dtype, rule.redop) for rule in rules} - {("*", "*")}
    for dtype, redop in types if named or facts.choosy(call.op, names, call.world) else ():
        here = replace(call, dtype=dtype, redop=redop)
        kind = _kind(rules, here, names, facts)
        if kind not in known:
            known[kind] = resolved(rules, here, facts)
        if known[kind] and known[kind] != general:
            yield replace(first, ranges=known[kind], fallback=(), dtype=dtype, redop=redop, **same)  # type: ignore[arg-type]
    if general:
        yield replace(first, ranges=general, fallback=(), dtype="*", redop="*", **same)  # type: ignore[arg-type]


def _kind(rules: list[Rule], call: Query, names: set[str], facts: Facts) -> tuple[object, ...]:
    """Return what a call's ranges depend on: the rules that cover it, and who refuses it."""
    covering = tuple(rule.dtype in ("*", call.dtype) and rule.redop in ("*", call.redop) for rule in rules)
    return covering, frozenset(name for name in names if facts.refusal(call, name))
