"""COMMLIB_LOG: what init() decided, and the algorithm of each first call, through Python's logging."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakMethod

import torch

from commlib import env
from commlib.backends.base import Backend
from commlib.collectives import COLLECTIVES
from commlib.collectives.signatures import kind_of
from commlib.core.dispatch import Dispatcher
from commlib.plan.rules import SPARING, size_text
from commlib.plan.table import Explanation

_LOG = logging.getLogger("commlib")


def show() -> None:
    """Do as COMMLIB_LOG says: on stderr, unless the program has set a level and handlers of logging."""
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
    for name in env.unknown():
        _LOG.warning("%s", env.describe_unknown(name))


def observer(backend: Backend, dispatcher: Dispatcher, explain: Callable[..., Explanation]) -> FirstCalls | None:
    return FirstCalls(backend, explain) if _LOG.isEnabledFor(logging.DEBUG) else None


class FirstCalls:
    """Logs the algorithm of the first call of each operation, type, reduction, power of 2 of bytes, memory and mode."""

    def __init__(self, backend: Backend, explain: Callable[..., Explanation]) -> None:
        self._backend, self._explain = backend, WeakMethod(explain)  # of the communicator, which keeps its observers
        self._logged: set[tuple[object, ...]] = set()

    def observe(self, name: str, run: Callable[..., Any], *arguments: Any) -> Any:
        self._log(name, arguments)
        return run(*arguments)

    def _log(self, name: str, arguments: tuple[Any, ...]) -> None:
        op = {"send": "send_recv", "recv": "send_recv", "enqueue_barrier": "barrier"}.get(name, name)
        if op == "all_reduce_epilogue":
            op = "all_reduce_rms_norm" if self._backend.name == "nccl" else "all_reduce"
        tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
        num_bytes, dtype, redop = kind_of(name, arguments, self._backend.size)
        placement = "symmetric" if tensors and all(map(self._backend.holds, tensors)) else "plain"
        capturing = self._backend.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        mode = "graph" if capturing else "eager"
        spares = any(type(x) is int and x == SPARING for x in arguments[-1:])
        kind = op, dtype, redop, num_bytes.bit_length(), placement, mode, spares
        if kind in self._logged:
            return
        self._logged.add(kind)
        explain = self._explain()
        assert explain is not None  # who makes a call has the communicator
        try:
            why = explain(op, num_bytes, dtype, redop, placement=placement, mode=mode, async_op=spares)
        except ValueError as error:  # the call itself says what is wrong with it
            _LOG.debug("rank %d: first %s: %s", self._backend.rank, op, error)
            return
        rank, size = self._backend.rank, size_text(num_bytes)
        called = f"{size} of {dtype}" + f" by {redop}" * COLLECTIVES[op].reduces
        _LOG.debug("rank %d: first %s of %s, %s, %s: %s", rank, op, called, placement, mode, why.algorithm)
