"""Rules in the words that native code reads (csrc/plan/table.h), checked against the rows they name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from commlib.backends.algorithm import Algorithm
from commlib.plan import Plan, Rule

Rows = Mapping[str, Mapping[str, Algorithm]]  # by collective and name


def plan_text(plan: Plan, world: int, rows: Rows, backend: str) -> str:
    """Return a plan's rules for so many ranks; a ValueError names the rule that cannot be."""
    return "\n".join(line for rule in plan.rules_of(world) for line in _lines(rule, rows, backend))


def _lines(rule: Rule, rows: Rows, backend: str) -> Iterator[str]:
    yield f"where plan {rule.source}: rules[{rule.number}]"
    yield (f"rule op={rule.op} placement={rule.placement} mode={rule.mode} dtype={rule.dtype} redop={rule.redop}")
    for kind, entries in (("range", rule.ranges), ("fallback", rule.fallback)):
        for entry in entries:
            algorithm = rows.get(rule.op, {}).get(entry.algorithm)
            if algorithm is None:
                raise ValueError(f"{rule.where}: {rule.op} has no algorithm {entry.algorithm!r} on {backend}")
            if fault := algorithm.fault_of(entry.params):
                raise ValueError(f"{rule.where}: {fault}")
            size = {} if entry.max_bytes is None else {"max_bytes": entry.max_bytes}
            words = {"algorithm": entry.algorithm, **size, "align": entry.align, **entry.params}
            yield " ".join([kind, *(f"{name}={value}" for name, value in words.items())])
