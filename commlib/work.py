"""Work: the handle of an asynchronous call, shaped like torch's."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import torch.distributed as dist
from torch.futures import Future as TorchFuture

from commlib.errors import CommTimeout


class Work(dist.Work):
    """A call under way on another thread; wait() returns when its result is there."""

    def __init__(self, future: Future[Any], what: str) -> None:
        super().__init__()
        self._future = future
        self._what = what

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Block until the call is done; raise what it raised, or CommTimeout."""
        seconds = timeout.total_seconds() if timeout else None
        # torch passes a zero timeout for "no timeout".
        try:
            self._future.result(seconds or None)
        except FutureTimeout:
            raise CommTimeout(f"{self._what} is not done after {seconds} s; it goes on in the background") from None
        return True

    def is_completed(self) -> bool:
        """Whether the call has ended, well or not."""
        return self._future.done()

    def is_success(self) -> bool:
        """Whether the call has ended without an error."""
        return self._future.done() and self._future.exception() is None

    def exception(self) -> BaseException | None:
        """Return what the call raised, or None."""
        return self._future.exception() if self._future.done() else None

    def result(self) -> Any:
        """Wait, then return what the synchronous call would have returned."""
        self.wait()
        return self._future.result()

    def get_future(self) -> TorchFuture[Any]:
        """Return a torch future of the result."""
        target: TorchFuture[Any] = TorchFuture()

        def copy(source: Future[Any]) -> None:
            error = source.exception()
            if error is None:
                target.set_result(source.result())
            else:
                target.set_exception(error)

        self._future.add_done_callback(copy)
        return target


class Lanes:
    """Threads that run asynchronous calls in order: one for collectives, one per direction and peer.

    A receive must not hold up the send its peer waits for, so messages of different pairs never queue
    behind each other.
    """

    def __init__(self) -> None:
        self._lanes: dict[Hashable, ThreadPoolExecutor] = {}
        self._last: dict[Hashable, Future[Any]] = {}
        self._lock = threading.Lock()
        self._inside = threading.local()
        self.used = False

    def submit(self, lane: Hashable, what: str, call: Callable[[], Any]) -> Work:
        """Run `call` after everything submitted to this lane before."""
        with self._lock:
            if lane not in self._lanes:
                self._lanes[lane] = ThreadPoolExecutor(1, thread_name_prefix=f"commlib-{lane}")
            self.used = True
            future = self._lanes[lane].submit(self._run, call)
            self._last[lane] = future
        return Work(future, what)

    def _run(self, call: Callable[[], Any]) -> Any:
        self._inside.value = True
        return call()

    def after(self, lane: Hashable, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return `run` made to wait for the lane first."""

        def ordered(*arguments: Any) -> Any:
            self.drain(lane)
            return run(*arguments)

        return ordered

    def drain(self, lane: Hashable) -> None:
        """Wait until the lane is empty: a synchronous call comes after the asynchronous ones before it."""
        last = None if getattr(self._inside, "value", False) else self._last.get(lane)
        if last is not None and not last.done():
            last.exception()

    def close(self) -> None:
        """Let the threads end; calls under way have been aborted by now."""
        for lane in self._lanes.values():
            lane.shutdown(wait=False, cancel_futures=True)
