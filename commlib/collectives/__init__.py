"""The collectives: one module each, holding its contract and the table of its algorithms."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

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
from commlib.collectives.spec import Algorithm, Call, Collective
from commlib.collectives.told import lines_of
from commlib.redops import REDOPS

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


# Entry points of a backend that are not named like their collective.
_COLLECTIVE_OF = {"send": "send_recv", "recv": "send_recv"}


def entry(backend: Backend, name: str) -> Callable[..., Any]:
    """Return what the communicator calls: the native function, or the Python half of the backend's algorithm.

    all_reduce has an entry for each reduction, in place ("all_reduce_sum") and not ("all_reduce_sum_into").
    """
    if backend.native:
        return backend.bind(name)
    if name.startswith("all_reduce_"):
        redop, _, into = name.removeprefix("all_reduce_").partition("_")
        run, code = _python_half(backend, "all_reduce"), REDOPS.index(redop)
        return (lambda out, x: run(out, x, code)) if into else (lambda x: run(x, x, code))
    run = _python_half(backend, _COLLECTIVE_OF.get(name, name))
    if name in ("send", "recv"):
        return lambda x, peer: run(x, peer, name == "send")
    return run


def _python_half(backend: Backend, name: str) -> Callable[..., Any]:
    halves = [a.run for a in COLLECTIVES[name].algorithms if a.backend == backend.name and a.run is not None]
    return partial(backend.run, name, halves[0])


def algorithm_names(backend: str) -> dict[str, list[str]]:
    """Return the algorithms of a backend by collective, for plans, bench and tests."""
    return {name: [a.name for a in spec.algorithms if a.backend == backend] for name, spec in COLLECTIVES.items()}


__all__ = ["COLLECTIVES", "REDOPS", "Algorithm", "Call", "Collective", "algorithm_names", "entry", "introduce"]
