"""Facts: what a plan cannot say of the algorithms that it names, read off their tables."""

from __future__ import annotations

from commlib.collectives import COLLECTIVES
from commlib.plan import Facts, Query


def facts(has_arena: bool = True) -> Facts:
    """Return what is true where symmetric memory is there, or is not; the backend refuses names it does not know."""
    rows = {(op, row.name): row for op, collective in COLLECTIVES.items() for row in collective.algorithms}
    symmetric = {key for key, row in rows.items() if row.placement == "symmetric"}

    def refuses(query: Query, algorithm: str) -> str | None:
        key = query.op, algorithm
        if key in symmetric and query.placement == "plain":
            return "its tensors lie in symmetric memory"
        if key in rows and rows[key].needs_arena and not has_arena:
            return "there is no symmetric memory"
        if key not in rows:
            return None
        return COLLECTIVES[query.op].refusal(rows[key], query.dtype, query.redop, query.world)

    return Facts(refuses, lambda op, algorithm: (op, algorithm) in symmetric)


FACTS = facts()
