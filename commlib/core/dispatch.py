"""Dispatcher: how the calls of a communicator are made when they do not go straight to native code.

A call goes straight there as long as nobody observes calls and no asynchronous one is under way. Everything else comes
through here: calls on another thread or stream, on few multiprocessors, behind asynchronous ones, or with observers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from copy import copy
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar
from weakref import ref

import torch

from commlib import env
from commlib.collectives.signatures import SIGNATURES
from commlib.core.work import COLLECTIVE_CALLS, StreamExecutor, ThreadExecutor, Work
from commlib.errors import CLOSED, CLOSED_TEXT, Closed
from commlib.native import library
from commlib.plan.rules import SPARING

T = TypeVar("T")
Make: TypeAlias = Callable[..., Any]
"""Makes one native call: its name, then its arguments."""


class Observer(Protocol):
    """Sees each call of a communicator: COMMLIB_LOG, COMMLIB_GUARD, and the functions of on_error and on_slow."""

    def observe(self, name: str, run: Callable[..., Any], *arguments: Any) -> Any:
        """Make the call, `run(*arguments)`, and return what it returned."""


class Dispatching(Protocol):
    """What torch.compile's operators and epilogues need of a Communicator, which stands above this layer."""

    rank: int
    device: torch.device
    backend: str
    graph_name: str
    dispatcher: Dispatcher


class Dispatcher:
    """Makes the calls of one communicator: now or later, with or without a limit, seen by its observers.

    `detour` is what a public call looks at first: whether it must come here although it is an ordinary one.
    """

    def __init__(
        self, owner: object, calls: library.Calls, executor: ThreadExecutor | StreamExecutor, *, native: bool
    ) -> None:
        self.calls = calls
        self.executor = executor
        self.observers: list[Observer] = []  # the first one is closest to the call
        self.detour = False
        self._owner = ref(owner)
        self._native = native
        self._pending = False  # whether asynchronous collectives may be under way, which later calls come behind
        self._closed = False

    def observe(self, observer: Observer) -> None:
        self.observers.append(observer)
        self.detour = True

    def call(self, name: str, arguments: tuple[object, ...], result: T, async_op: bool, max_sms: int) -> T | Work:
        limit = self.limit(max_sms) if max_sms else ()
        if async_op:
            make = self.make if max_sms else self._make_sparing
            places = zip(SIGNATURES[name].parameters, arguments, strict=True)
            copied = [copy(x) if parameter.type.startswith("SymInt[") else x for parameter, x in places]
            return self._submit(COLLECTIVE_CALLS, name, lambda: (make(name, *copied, *limit), result)[1])
        self.now(name, *arguments, *limit)
        return result

    def now(self, name: str, *arguments: Any) -> Any:
        """Make a collective behind the asynchronous ones."""
        if not self.detour:
            return getattr(self.calls, name)(*arguments)
        if self._pending:
            self.executor.wait_pending(self._clear_pending)
        return self.make(name, *arguments)

    def later(self, name: str, run: Callable[[Make], object], result: object = None, *, spares: bool = True) -> Work:
        """Make collectives asynchronously: `run` makes them by the function that it gets."""
        make = self._make_sparing if spares else self.make
        return self._submit(COLLECTIVE_CALLS, name, lambda: (run(make), result)[1])

    def message(
        self, name: str, run: Callable[[torch.Tensor, int], object], x: torch.Tensor, peer: int, async_op: bool
    ) -> Work | None:
        """Send or receive: messages of a pair and direction run in order, behind the collectives before them."""
        if async_op:
            return self._submit((name, peer), name, lambda: run(x, peer) or x)
        self.drain((name, peer))
        run(x, peer)
        return None

    def drain(self, *queues: Hashable) -> None:
        """Wait for the asynchronous collectives, and for the messages of these queues."""
        self.check_open()
        if self.executor.used:
            self.executor.drain(COLLECTIVE_CALLS, *queues)

    def make(self, name: str, *arguments: Any) -> Any:
        run = getattr(self.calls, name)
        # A graph's operators come here again when they run.
        if not self.observers or torch.compiler.is_dynamo_compiling():
            return run(*arguments)
        for observer in self.observers:
            run = partial(observer.observe, name, run)
        return run(*arguments)

    def limit(self, max_sms: int) -> tuple[int, ...]:
        """Return the last argument of a native call with a limit; other backends leave it to their engine."""
        if torch.compiler.is_dynamo_compiling():
            return (max_sms,)  # a graph asks again when it runs
        limit = env.MAX_SMS.resolve(max_sms, "max_sms")
        return (limit,) if self._native else ()

    def close(self, why: Exception, wait_s: float = 0.0) -> None:
        """Fail the calls under way and refuse later ones."""
        self.forget()
        self.executor.close(why, wait_s)

    def forget(self) -> None:
        """Refuse calls from now on, and release the native ones, which hold the communicator's memory."""
        self._closed = self.detour = True
        self.calls = CLOSED  # also for a thread that has just looked at `detour`

    def _submit(self, queue: Hashable, name: str, call: Callable[[], Any]) -> Work:
        """Submit a call that keeps the communicator, which ends with its last reference, until it is over."""
        self.check_open()
        work = self.executor.submit(queue, name, partial(_call_of, self._owner(), call))
        if queue == COLLECTIVE_CALLS and self.executor.orders_later_calls:
            self._pending = self.detour = True
        return work

    def _make_sparing(self, name: str, *arguments: Any) -> Any:
        """Make a call that leaves most of a GPU to what runs next to it; a barrier has one block anyway."""
        spares = self.executor.spares and self._native and name != "enqueue_barrier"
        return self.make(name, *arguments, SPARING) if spares else self.make(name, *arguments)

    def _clear_pending(self) -> None:
        self._pending = False
        self.detour = bool(self.observers) or self._closed

    def check_open(self) -> None:
        if self._closed:
            raise Closed(CLOSED_TEXT)


def _call_of(owner: object, call: Callable[[], Any]) -> Any:
    return call()
