"""What a native backend is told, in words by name (csrc/plan/words.h): its rows at start, then the rules of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, lru_cache

from commlib.backends.base import Backend, Choose
from commlib.collectives import COLLECTIVES
from commlib.collectives.facts import facts
from commlib.collectives.spec import Algorithm, Collective
from commlib.errors import Unsupported
from commlib.plan import Plan, Point, Query, Range, Rule
from commlib.plan.decide import decide
from commlib.redops import DTYPES, REDOPS

KEPT = 4096  # choices of kinds of calls


@cache
def rows_text(backend: str, size: int) -> str:
    """Return what the rows of a backend's algorithms say, as csrc/plan/row.cc reads it."""
    rows = ((spec, a) for spec in COLLECTIVES.values() for a in spec.algorithms if a.backend == backend)
    return "\n".join(line for spec, algorithm in rows for line in _lines_of_row(spec, algorithm, size))


def _lines_of_row(collective: Collective, algorithm: Algorithm, size: int) -> Iterator[str]:
    facts = {
        "arena": algorithm.needs_arena,
        "reduces": collective.reduces,
        "rooted": collective.rooted,
        "composed": algorithm.composed,
        "engine": algorithm.engine,
    }
    told = " ".join(f"{name}={'yes' if fact else 'no'}" for name, fact in facts.items())
    yield (
        f"algorithm op={collective.name} name={algorithm.name} placement={algorithm.placement} "
        f"kernel={algorithm.source} room={algorithm.room_bytes} sms={algorithm.sms} {told}"
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


def choice_of(plan: Plan, backend: Backend) -> Choose:
    """Return what a backend without native code asks for the algorithm of each call."""
    known, size = facts(backend), backend.size  # the backend keeps what is returned

    @lru_cache(maxsize=KEPT)
    def choose(op: str, num_bytes: int, dtype: str, redop: str) -> str:
        call = Query(op, num_bytes, dtype, redop, size)
        found = decide(plan.rules, call, known)
        if found is not None:
            return found.entry.algorithm
        entries = (entry for rule in plan.rules if rule.covers(call) for entry in (*rule.ranges, *rule.fallback))
        named = dict.fromkeys(entry.algorithm for entry in entries)
        reasons = "; ".join(f"{name}: {reason}" for name in named if (reason := known.refusal(call, name)))
        kind = f"{dtype} by {redop}" if COLLECTIVES[op].reduces else dtype
        raise Unsupported(f"plan {plan.source} has nothing that runs {op} of {kind} ({reasons or 'no rule'})")

    return choose


def _lines_of_rule(rule: Rule, backend: str) -> Iterator[str]:
    yield f"where plan {rule.source}: rules[{rule.number}]"
    yield f"rule op={rule.op} placement={rule.placement} mode={rule.mode} dtype={rule.dtype} redop={rule.redop}"
    for kind, entries in (("range", rule.ranges), ("fallback", rule.fallback)):
        for entry in entries:
            most = _row(rule, entry, backend).most_sms(entry.params)
            size = {} if entry.max_bytes is None else {"max_bytes": entry.max_bytes}
            yield _line(kind, entry, {**size, "align": entry.align})
            for point in entry.fewer(most):
                _row(rule, point, backend)
                yield _line("fewer", point, {"time": point.time})


def _row(rule: Rule, entry: Range | Point, backend: str) -> Algorithm:
    """Return the row of what an entry names; a ValueError says what is wrong with it."""
    algorithm = COLLECTIVES[rule.op].rows(backend).get(entry.algorithm) if rule.op in COLLECTIVES else None
    if algorithm is None:
        raise ValueError(f"{rule.where()}: {rule.op} has no algorithm {entry.algorithm!r} on {backend}")
    if fault := algorithm.fault_of(entry.params):
        raise ValueError(f"{rule.where()}: {fault}")
    return algorithm


def _line(kind: str, entry: Range | Point, more: Mapping[str, int]) -> str:
    words = {"algorithm": entry.algorithm, **more, **entry.params}
    return " ".join([kind, *(f"{name}={value}" for name, value in words.items())])
