"""COMMLIB_LOG: what init() decided, and the algorithm of each first call, through Python's logging."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, cast
from weakref import proxy

import torch

from commlib import env
from commlib.collectives import COLLECTIVES
from commlib.collectives.python_calls import kind_of
from commlib.plan.rules import SPARING, size_text
from commlib.redops import Redop

if TYPE_CHECKING:
    from commlib._native import Calls
    from commlib.communicator import Communicator

_LOG = logging.getLogger("commlib")


def show() -> None:
    """Do as COMMLIB_LOG says: on stderr, unless the program has given logging a level and handlers of its own."""
    if not env.LOG.is_set():
        return
    level = env.LOG.get().upper()
    if _LOG.level == logging.NOTSET:
        _LOG.setLevel(level)
    if not _LOG.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("commlib: %(message)s"))
        handler.addFilter(lambda record: not logging.getLogger().handlers)  # the program has set them up since
        _LOG.addHandler(handler)


@cache
def warn_of_unknown() -> None:
    """Name the variables that nothing reads, once in a process."""
    for name in env.unknown():
        _LOG.warning("%s", env.told_unknown(name))


def watched(calls: Calls, comm: Communicator) -> Calls:
    """Return the calls of a communicator; at debug level they tell the algorithm of the first of each kind."""
    return cast("Calls", _FirstCalls(calls, proxy(comm))) if _LOG.isEnabledFor(logging.DEBUG) else calls


class _FirstCalls:
    """Stands in for the calls: a kind is an operation, its type and reduction, a power of 2 of bytes, where and how."""

    def __init__(self, calls: Calls, comm: Communicator) -> None:
        self._calls, self._comm = calls, comm
        self._told: set[tuple[object, ...]] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        run = getattr(self._calls, name)
        op = {"send": "send_recv", "recv": "send_recv", "enqueue_barrier": "barrier"}.get(name, name)
        if op == "all_reduce_epilogue":
            op = "all_reduce_rms_norm" if self._comm.backend == "nccl" else "all_reduce"

        def call(*given: Any) -> Any:
            if not torch.compiler.is_dynamo_compiling():
                self._tell(op, given)
            return run(*given)

        return call

    def _tell(self, op: str, given: tuple[Any, ...]) -> None:
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        num_bytes, dtype, redop = kind_of(op, given, self._comm.size)
        placement = "symmetric" if tensors and all(map(self._comm._backend.holds, tensors)) else "plain"
        capturing = self._comm.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        mode = "graph" if capturing else "eager"
        spares = any(type(x) is int and x == SPARING for x in given[-1:])
        kind = op, dtype, redop, num_bytes.bit_length(), placement, mode, spares
        if kind in self._told:
            return
        self._told.add(kind)
        try:
            keys: dict[str, Any] = {"placement": placement, "mode": mode, "async_op": spares}
            why = self._comm.explain(op, num_bytes, dtype, cast("Redop", redop), **keys)
        except ValueError as error:  # the call itself says what is wrong with it
            _LOG.debug("rank %d: first %s: %s", self._comm.rank, op, error)
            return
        called = f"{size_text(num_bytes)} of {dtype}" + f" by {redop}" * COLLECTIVES[op].reduces
        _LOG.debug("rank %d: first %s of %s, %s, %s: %s", self._comm.rank, op, called, placement, mode, why.algorithm)
