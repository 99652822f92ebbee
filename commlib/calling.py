"""Calling: how a Communicator makes its calls: now, later on a lane, on few multiprocessors."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import torch

from commlib import env
from commlib.backends.base import Backend
from commlib.errors import meant
from commlib.work import COLLECTIVE_CALLS, Lanes, StreamLanes, Work

if TYPE_CHECKING:
    from commlib._native import Calls

T = TypeVar("T")
Run: TypeAlias = "Callable[[Calls], object]"


class Calling:
    """What a communicator has for its calls."""

    rank: int
    size: int
    device: torch.device
    _backend: Backend
    _lanes: Lanes | StreamLanes
    _unordered: Calls  # nobody waits for asynchronous calls
    _calls: Calls  # behind asynchronous calls, while there are any
    _graph_name: str  # by which compiled graphs know it

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say which name was meant."""
            known = {name for name in (*dir(type(self)), *vars(self)) if not name.startswith("_")}
            raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}{meant(name, known)}")

    def _inner(self) -> AbstractContextManager[None]:
        """Mark the calls inside as part of another one, when those on the lane, which are not, are done."""
        self._lanes.drain(COLLECTIVE_CALLS)
        return self._backend.inner()

    def _asked(self, name: str, given: tuple[object, ...], result: T, async_op: bool, max_sms: int) -> T | Work:
        """Make a call later, on few multiprocessors, or both."""
        most = self._most(max_sms) if max_sms else ()
        if async_op:
            return self._later(name, lambda calls: getattr(calls, name)(*given, *most), result, spares=not max_sms)
        getattr(self._calls, name)(*given, *most)
        return result

    def _most(self, max_sms: int) -> tuple[int, ...]:
        """Return what native code is told of the multiprocessors; other backends leave them to their engine."""
        if torch.compiler.is_dynamo_compiling():
            return (max_sms,)  # a graph asks again when it runs
        limit = env.MAX_SMS.given(max_sms, "max_sms")
        return (limit,) if self._backend.native else ()

    def _later(self, name: str, run: Run, result: object = None, *, spares: bool = True) -> Work:
        """Make a call on the lane of the collectives; from now on those of the caller come behind it.

        Without a limit of its own it spares the GPU.
        """
        calls = self._unordered
        used = self._lanes.sparing(calls) if spares else calls

        def call() -> object:
            done = run(used)
            return result if done is None else done

        work = self._submit(COLLECTIVE_CALLS, name, call)
        if self._calls is calls:
            self._calls = self._lanes.after(calls, self)
        return work

    def _submit(self, lane: Hashable, name: str, call: Callable[[], Any]) -> Work:
        """Submit a call that keeps this communicator, which ends with the last reference, until it is over."""
        return self._lanes.submit(lane, name, partial(_make, call, self))


def _make(call: Callable[[], Any], comm: Calling) -> Any:
    return call()
