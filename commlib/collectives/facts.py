"""Facts: what a plan cannot say of the algorithms that it names, read off their tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch

from commlib.backends.base import Backend
from commlib.collectives import COLLECTIVES, Algorithm
from commlib.collectives.spec import Call
from commlib.plan import Facts, Query

NO_MULTIPROCESSORS = "takes no multiprocessors: copy engines move the data (a kernel the own block, out of place)"


def facts(backend: Backend | None = None) -> Facts:
    """Return what is true on a backend; without one, where there is symmetric memory.

    The backend refuses names it does not know.
    """
    has_arena = backend is None or backend.has_arena
    multiprocessors = 0 if backend is None else backend.multiprocessors

    def refuses(query: Query, algorithm: str) -> str | None:
        row = _rows().get((query.op, algorithm))
        if row is None:
            return None
        if row.placement == "symmetric" and query.placement == "plain":
            return "its tensors lie in symmetric memory"
        if row.needs_arena and not has_arena:
            return "there is no symmetric memory"
        return COLLECTIVES[query.op].refusal(row, query.dtype, query.redop, query.world)

    def symmetric(op: str, algorithm: str) -> bool:
        row = _rows().get((op, algorithm))
        return row is not None and row.placement == "symmetric"

    def remark(op: str, algorithm: str) -> str:
        row = _rows().get((op, algorithm))
        return NO_MULTIPROCESSORS if row is not None and row.engine else ""

    def sms(op: str, algorithm: str, params: Mapping[str, int]) -> tuple[int, int]:
        row = _rows().get((op, algorithm))
        return (0, 0) if row is None else (row.most_sms(params), row.least_sms(params))

    return Facts(refuses, symmetric, remark, sms, multiprocessors or Facts.multiprocessors)


@cache
def _rows() -> dict[tuple[str, str], Algorithm]:
    return {(op, row.name): row for op, collective in COLLECTIVES.items() for row in collective.algorithms}


FACTS = facts()


def traffic(op: str, dtype: str, count: int, world: int) -> tuple[int, float]:
    """Return the bytes of a call as nccl-tests prints them, and those that its bus bandwidth counts; 0 if unknown."""
    collective = COLLECTIVES.get(op)
    if collective is None:
        return 0, 0.0
    num_bytes = collective.num_bytes(Call(0, world, count, getattr(torch, dtype)))
    return num_bytes, num_bytes * collective.bus_factor(world)
