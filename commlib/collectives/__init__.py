"""The collectives: one module each, holding its contract and the table of its algorithms."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from commlib.backends.base import Backend
from commlib.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
    send_recv,
)
from commlib.collectives.python_calls import PythonCalls
from commlib.collectives.spec import Algorithm, Call, Collective
from commlib.collectives.told import lines_of
from commlib.redops import REDOPS

if TYPE_CHECKING:
    from commlib._native import Calls

COLLECTIVES: dict[str, Collective] = {
    spec.name: spec
    for spec in (
        all_reduce.ALL_REDUCE,
        all_gather.ALL_GATHER,
        all_gather.ALL_GATHERV,
        reduce_scatter.REDUCE_SCATTER,
        reduce_scatter.REDUCE_SCATTERV,
        broadcast.BROADCAST,
        reduce.REDUCE,
        all_to_all.ALL_TO_ALL,
        all_to_all.ALL_TO_ALLV,
        gather.GATHER,
        scatter.SCATTER,
        send_recv.SEND_RECV,
        barrier.BARRIER,
    )
}


def introduce(backend: Backend) -> Backend:
    """Tell a backend what it can do, its rows and what its native half needs to know of them, and return it."""
    rows = {
        name: {a.name: a for a in spec.algorithms if a.backend == backend.name} for name, spec in COLLECTIVES.items()
    }
    backend.learn(rows, _text(backend.name, backend.size))
    return backend


@cache
def _text(backend: str, size: int) -> str:
    rows = ((spec, a) for spec in COLLECTIVES.values() for a in spec.algorithms if a.backend == backend)
    return "\n".join(line for spec, algorithm in rows for line in lines_of(spec, algorithm, size))


def calls_of(backend: Backend) -> Calls | PythonCalls:
    """Return what the communicator calls: native code, or the Python halves of the backend's algorithms."""
    return backend.calls() if backend.native else PythonCalls(backend, COLLECTIVES)


def algorithm_names(backend: str) -> dict[str, list[str]]:
    """Return the algorithms of a backend by collective, for plans, bench and tests."""
    return {name: [a.name for a in spec.algorithms if a.backend == backend] for name, spec in COLLECTIVES.items()}


__all__ = [
    "COLLECTIVES",
    "REDOPS",
    "Algorithm",
    "Call",
    "Collective",
    "PythonCalls",
    "algorithm_names",
    "calls_of",
    "introduce",
]
