"""Facts: what a plan cannot say of the algorithms that it names, read off their tables."""

from __future__ import annotations

from commlib.collectives import COLLECTIVES
from commlib.collectives.spec import Algorithm
from commlib.collectives.told import refusal
from commlib.plan import Facts, Query


def facts(has_arena: bool = True) -> Facts:
    """Return what is true where symmetric memory is there, or is not."""

    def refuses(query: Query, algorithm: str) -> str | None:
        row = _row(query.op, algorithm)
        if row is None:
            return None  # the backend says so, with the rule and its file
        if row.placement == "symmetric" and query.placement == "plain":
            return "its tensors lie in symmetric memory"
        if row.needs_arena and not has_arena:
            return "there is no symmetric memory"
        return refusal(COLLECTIVES[query.op], row, query.dtype, query.redop, query.world)

    return Facts(refuses, _symmetric)


def _row(op: str, algorithm: str) -> Algorithm | None:
    return next((row for row in COLLECTIVES[op].algorithms if row.name == algorithm), None)


def _symmetric(op: str, algorithm: str) -> bool:
    row = _row(op, algorithm)
    return row is not None and row.placement == "symmetric"


FACTS = facts()
