"""The collectives: one module each, holding its contract and the table of its algorithms."""

from __future__ import annotations

import torch

from commlib.backends.base import Backend
from commlib.collectives import (
    all_gather,
    all_reduce,
    all_reduce_rms_norm,
    all_to_all,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
    send_recv,
)
from commlib.collectives.plugins import Tables
from commlib.collectives.spec import Algorithm, Call, Collective
from commlib.collectives.torch_calls import python_calls
from commlib.native import library
from commlib.redops import REDOPS

COLLECTIVES = Tables(
    (
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
        all_reduce_rms_norm.ALL_REDUCE_RMS_NORM,
        barrier.BARRIER,
    )
)


def calls_of(backend: Backend) -> library.Calls:
    """Return what the communicator calls: native code, or the Python halves of the backend's algorithms."""
    return backend.calls() if backend.native else python_calls(backend, COLLECTIVES)


def algorithm_names(backend: str) -> dict[str, list[str]]:
    """Return the algorithms of a backend by collective, for plans, bench and tests."""
    return {name: list(spec.rows(backend)) for name, spec in COLLECTIVES.items()}


def traffic(op: str, dtype: str, count: int, world: int) -> tuple[int, float]:
    """Return the bytes of a call as nccl-tests prints them, and those that its bus bandwidth counts; 0 if unknown."""
    collective = COLLECTIVES.get(op)
    if collective is None:
        return 0, 0.0
    num_bytes = collective.num_bytes(Call(0, world, count, getattr(torch, dtype)))
    return num_bytes, num_bytes * collective.bus_factor(world)


__all__ = [
    "COLLECTIVES",
    "REDOPS",
    "Algorithm",
    "Call",
    "Collective",
    "algorithm_names",
    "calls_of",
    "traffic",
]
