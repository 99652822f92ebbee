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
from commlib.collectives.signatures import kind_of
from commlib.plan.rules import SPARING, size_text
from commlib.redops import Redop

if TYPE_CHECKING:
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
        _LOG.warning("%s", env.unknown_text(name))


class FirstCalls:
    """Logs the algorithm of the first call of each operation, type, reduction, power of 2 of bytes, memory and mode."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = cast("Communicator", proxy(comm))
        self._logged: set[tuple[object, ...]] = set()

    def observe(self, name: str, run: Callable[..., Any], *arguments: Any) -> Any:
        """Log what is new about it, and make it."""
        self._log(name, arguments)
        return run(*arguments)

    def _log(self, name: str, arguments: tuple[Any, ...]) -> None:
        op = {"send": "send_recv", "recv": "send_recv", "enqueue_barrier": "barrier"}.get(name, name)
        if op == "all_reduce_epilogue":
            op = "all_reduce_rms_norm" if self._comm.backend == "nccl" else "all_reduce"
        tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
        num_bytes, dtype, redop = kind_of(name, arguments, self._comm.size)
        placement = "symmetric" if tensors and all(map(self._comm.resources.holds, tensors)) else "plain"
        capturing = self._comm.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        mode = "graph" if capturing else "eager"
        spares = any(type(x) is int and x == SPARING for x in arguments[-1:])
        kind = op, dtype, redop, num_bytes.bit_length(), placement, mode, spares
        if kind in self._logged:
            return
        self._logged.add(kind)
        try:
            keys: dict[str, Any] = {"placement": placement, "mode": mode, "async_op": spares}
            why = self._comm.explain(op, num_bytes, dtype, cast("Redop", redop), **keys)
        except ValueError as error:  # the call itself says what is wrong with it
            _LOG.debug("rank %d: first %s: %s", self._comm.rank, op, error)
            return
        called = f"{size_text(num_bytes)} of {dtype}" + f" by {redop}" * COLLECTIVES[op].reduces
        _LOG.debug("rank %d: first %s of %s, %s, %s: %s", self._comm.rank, op, called, placement, mode, why.algorithm)
