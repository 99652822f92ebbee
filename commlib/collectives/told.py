"""What a native backend is told, in words by name (csrc/plan/words.h): its rows at start, then the rules of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from commlib.collectives import COLLECTIVES
from commlib.collectives.spec import Algorithm, Collective
from commlib.plan import Plan, Rule
from commlib.redops import DTYPES, REDOPS


@cache
def rows_text(backend: str, size: int) -> str:
    """Return what the rows of a backend's algorithms say, as csrc/plan/row.cc reads it."""
    rows = ((spec, a) for spec in COLLECTIVES.values() for a in spec.algorithms if a.backend == backend)
    return "\n".join(line for spec, algorithm in rows for line in _lines_of_row(spec, algorithm, size))


def _lines_of_row(collective: Collective, algorithm: Algorithm, size: int) -> Iterator[str]:
    facts = {"arena": algorithm.needs_arena, "reduces": collective.reduces, "rooted": collective.rooted}
    told = " ".join(f"{name}={'yes' if fact else 'no'}" for name, fact in facts.items())
    yield (
        f"algorithm op={collective.name} name={algorithm.name} placement={algorithm.placement} "
        f"kernel={algorithm.source} {told}"
    )
    for dtype, redop in _reductions(collective, algorithm, size):
        yield f"serves dtype={dtype} redop={redop}"
    for param in algorithm.params:
        yield f"param name={param.name} default={param.default}"


def _reductions(collective: Collective, algorithm: Algorithm, size: int) -> list[tuple[str, str]]:
    """Return what it serves; what only moves, serves every type or none."""
    calls = [(dtype, redop) for dtype in DTYPES for redop in REDOPS]
    if not collective.reduces:
        return [] if collective.refusal(algorithm, *calls[0], size) else [("*", "*")]
    return [call for call in calls if collective.refusal(algorithm, *call, size) is None]


def plan_text(plan: Plan, world: int, backend: str) -> str:
    """Return a plan's rules for so many ranks, as csrc/plan/table.cc reads them; ValueError names what cannot be."""
    return "\n".join(line for rule in plan.rules_of(world) for line in _lines_of_rule(rule, backend))


def chosen(plan: Plan, world: int) -> dict[str, str]:
    """Return what a backend without native code runs: of each collective's first rule the last range, at every size."""
    return {rule.op: rule.ranges[-1].algorithm for rule in reversed(plan.rules_of(world)) if rule.placement == "plain"}


def _lines_of_rule(rule: Rule, backend: str) -> Iterator[str]:
    yield f"where plan {rule.source}: rules[{rule.number}]"
    yield f"rule op={rule.op} placement={rule.placement} mode={rule.mode} dtype={rule.dtype} redop={rule.redop}"
    for kind, entries in (("range", rule.ranges), ("fallback", rule.fallback)):
        for entry in entries:
            algorithm = COLLECTIVES[rule.op].rows(backend).get(entry.algorithm) if rule.op in COLLECTIVES else None
            if algorithm is None:
                raise ValueError(f"{rule.where()}: {rule.op} has no algorithm {entry.algorithm!r} on {backend}")
            if fault := algorithm.fault_of(entry.params):
                raise ValueError(f"{rule.where()}: {fault}")
            size = {} if entry.max_bytes is None else {"max_bytes": entry.max_bytes}
            words = {"algorithm": entry.algorithm, **size, "align": entry.align, **entry.params}
            yield " ".join([kind, *(f"{name}={value}" for name, value in words.items())])
