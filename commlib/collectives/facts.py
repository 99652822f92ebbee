"""Facts: what a plan cannot say of the algorithms that it names, read off their tables."""

from __future__ import annotations

from functools import cache

import torch

from commlib.collectives import COLLECTIVES
from commlib.collectives.spec import Algorithm
from commlib.plan import Facts, Plan, Query
from commlib.plan.flat import flattened
from commlib.redops import DTYPES, REDOPS


def _row(op: str, algorithm: str) -> Algorithm | None:
    return next((row for row in COLLECTIVES[op].algorithms if row.name == algorithm), None)


def _refusal(query: Query, algorithm: str) -> str | None:
    row, collective = _row(query.op, algorithm), COLLECTIVES[query.op]
    if row is None:
        return None  # the backend says so, with the rule and its file
    if row.placement == "symmetric" and query.placement == "plain":
        return "its tensors lie in symmetric memory"
    return _refuses(query.op, algorithm, query.dtype, query.redop, query.world) if collective.reduces else None


@cache
def _refuses(op: str, algorithm: str, dtype: str, redop: str, world: int) -> str | None:
    return COLLECTIVES[op].algorithm(algorithm).refuses(getattr(torch, dtype), redop, world)


def _choosy(op: str, algorithms: set[str], world: int) -> bool:
    pairs = [(name, dtype, redop) for name in algorithms for dtype in DTYPES for redop in REDOPS]
    known = {row.name for row in COLLECTIVES[op].algorithms}
    return COLLECTIVES[op].reduces and any(_refuses(op, *pair, world) for pair in pairs if pair[0] in known)


def _symmetric(op: str, algorithm: str) -> bool:
    row = _row(op, algorithm)
    return row is not None and row.placement == "symmetric"


FACTS = Facts(_refusal, _symmetric, _choosy)


def flat(plan: Plan, world: int) -> Plan:
    """Return a plan without fallbacks, for the native tables."""
    return flattened(plan, world, FACTS, DTYPES, REDOPS)
