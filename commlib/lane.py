"""Lane: a thread that runs calls one after the other, and never keeps the process alive."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from queue import SimpleQueue
from typing import Any

_Call = tuple[Future[Any], Callable[[], Any]]


class Lane:
    """Runs what is submitted, in order; at its end, calls that are not done fail instead of staying open."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._pending: deque[Future[Any]] = deque()
        self._lock = threading.Lock()
        self._ended: Exception | None = None
        # A daemon, which holds the queue alone: the process may end, or the lane be dropped, while it waits.
        self._thread = threading.Thread(target=_serve, args=(self._calls,), name=f"commlib-{name}", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Run `call` after everything submitted before."""
        with self._lock:
            if self._ended is not None:
                raise self._ended
            while self._pending and self._pending[0].done():
                self._pending.popleft()
            future: Future[Any] = Future()
            self._pending.append(future)
            self._calls.put((future, call))
        return future

    def runs_here(self) -> bool:
        """Whether the caller is a call of this lane."""
        return threading.current_thread() is self._thread

    def close(self, why: Exception) -> None:
        """Fail what is not done, also the call under way: whoever waits for it goes on."""
        with self._lock:
            self._ended = why
            self._calls.put(None)
        for future in self._pending:
            _settle(future.set_exception, why)

    def join(self, timeout_s: float) -> None:
        """Wait until the call under way has returned."""
        self._thread.join(timeout_s)

    def __del__(self) -> None:
        """Let the thread end."""
        self._calls.put(None)


def _serve(calls: SimpleQueue[_Call | None]) -> None:
    while _run(calls.get()):
        pass


def _run(next_call: _Call | None) -> bool:
    if next_call is None:
        return False
    future, call = next_call
    if not future.done():
        try:
            outcome = call()
        except BaseException as error:
            _settle(future.set_exception, error)
        else:
            _settle(future.set_result, outcome)
    return True


def _settle(settle: Callable[[Any], None], outcome: Any) -> None:
    with contextlib.suppress(InvalidStateError):  # close() was first
        settle(outcome)
