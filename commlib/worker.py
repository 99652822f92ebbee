"""Worker: a thread that runs calls one after the other, and never keeps the process alive."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from queue import SimpleQueue
from typing import Any

_Site = tuple[str, int]
_Call = tuple[Future[Any], Callable[[], Any], _Site]
_COMMLIB = str(Path(__file__).parent) + os.sep
_TORCH = f"{os.sep}torch{os.sep}distributed{os.sep}"  # it calls us for the program


class _Submitted(threading.local):
    """Where the call was submitted that this thread runs, if it is a worker's."""

    at: _Site | None = None


_SUBMITTED = _Submitted()


def call_site() -> str:
    """Return the file and line of the program that makes the call under way, or that has submitted it to a worker."""
    file, line = _site()
    return f"{file}:{line}"


def _site() -> _Site:
    if _SUBMITTED.at is not None:
        return _SUBMITTED.at
    frame = sys._getframe()
    while (file := frame.f_code.co_filename).startswith(_COMMLIB) or _TORCH in file:
        if frame.f_back is None:
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


class Worker:
    """Runs what is submitted, in order; at its end, calls that are not done fail instead of staying open."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._pending: deque[Future[Any]] = deque()
        self._lock = threading.Lock()
        self._ended: Exception | None = None
        # A daemon, which holds the queue only: the process may end, or the worker be dropped, while it waits.
        self._thread = threading.Thread(target=_serve, args=(self._calls,), name=f"commlib-{name}", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        with self._lock:
            if self._ended is not None:
                raise self._ended
            while self._pending and self._pending[0].done():
                self._pending.popleft()
            future: Future[Any] = Future()
            self._pending.append(future)
            self._calls.put((future, call, _site()))
        return future

    def runs_here(self) -> bool:
        return threading.current_thread() is self._thread

    def close(self, why: Exception) -> None:
        """Fail what is not done, also the call under way: whoever waits for it goes on."""
        with self._lock:
            self._ended = why
            self._calls.put(None)
        for future in self._pending:
            _settle(future.set_exception, why)

    def join(self, timeout_s: float) -> None:
        """Wait until the call under way has returned, unless it is the caller."""
        if not self.runs_here():
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
    future, call, _SUBMITTED.at = next_call
    if not future.done():
        _fill(future, call)
    return True


def run_now(call: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    _fill(future, call)
    return future


def _fill(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        outcome = call()
    except BaseException as error:
        _settle(future.set_exception, error)
    else:
        _settle(future.set_result, outcome)


def _settle(settle: Callable[[Any], None], outcome: Any) -> None:
    with contextlib.suppress(InvalidStateError):  # close() was first
        settle(outcome)
