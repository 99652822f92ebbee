"""Work: the handle of an asynchronous call, shaped like torch's."""

from __future__ import annotations

import datetime
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future as TorchFuture

from commlib import env
from commlib.errors import CommTimeout, limits_of
from commlib.worker import Worker, run_now


class Work(dist.Work):
    """A call under way, as torch has it: what `async_op=True` returns."""

    timeout: datetime.timedelta | None = None  # of a wait() without one

    def result(self) -> Any:
        """Do as wait(), then return what the synchronous call would have returned."""
        raise NotImplementedError

    def synchronize(self) -> None:
        self.wait()

    block_current_stream = synchronize


class ThreadWork(Work):
    """A call under way on another thread; wait() returns when its result is there."""

    def __init__(self, future: Future[Any], what: str) -> None:
        super().__init__()
        self._future, self._what = future, what

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Block until the call is done; raise what it raised, or CommTimeout."""
        within = timeout or self.timeout  # torch passes a zero timeout for "no timeout"
        seconds = within.total_seconds() if within else None
        try:
            self._future.result(seconds)
        except FutureTimeout:
            raise CommTimeout(f"{self._what} is not done after {seconds} s; it continues in the background") from None
        return True

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        return self._future.exception() if self._future.done() else None

    def result(self) -> Any:
        self.wait()
        return self._future.result()

    def get_future(self) -> TorchFuture[Any]:
        target: TorchFuture[Any] = TorchFuture()

        def copy(source: Future[Any]) -> None:
            error = source.exception()
            if error is None:
                target.set_result(source.result())
            else:
                target.set_exception(error)

        self._future.add_done_callback(copy)
        return target


COLLECTIVE_CALLS = "collectives"  # the queue of all of them; messages have one for each direction and peer


class ThreadExecutor:
    """Runs asynchronous calls on threads, one for each queue: in order, and messages after the collectives before them.

    A receive must not hold up the send its peer waits for, so messages of different pairs never queue behind each
    other, and no collective behind a message.
    """

    spares = False  # CPUs have no multiprocessors, and engines in Python take what they take
    orders_later_calls = True  # a call of the caller's own thread comes behind those under way

    def __init__(self) -> None:
        self._workers: dict[Hashable, Worker] = {}
        self._last: dict[Hashable, Future[Any]] = {}
        self._lock = threading.Lock()
        self._ended: Exception | None = None
        self.used = False

    def submit(self, queue: Hashable, what: str, call: Callable[[], Any]) -> ThreadWork:
        """Run `call` after everything submitted to this queue before, and after every collective before."""
        _refuse_tracing(what)
        with self._lock:
            if self._ended is not None:
                raise self._ended
            if queue not in self._workers:
                with limits_of(what):
                    self._workers[queue] = Worker(f"{queue}")
            self.used = True
            if not self._workers[queue].runs_here():
                first = queue == COLLECTIVE_CALLS or self._runs_here()
                before = None if first else self._last.get(COLLECTIVE_CALLS)
                self._last[queue] = self._workers[queue].submit(partial(_call_after, before, call))
                return ThreadWork(self._last[queue], what)
        return ThreadWork(run_now(call), what)  # of a callback, which holds up the calls behind the one it follows

    def wait_pending(self, done: Callable[[], object]) -> None:
        """Wait for the collectives submitted before, and call `done` if no other came meanwhile."""
        self.drain(COLLECTIVE_CALLS)
        if torch.compiler.is_dynamo_compiling():
            return
        with self._lock:
            if (last := self._last.get(COLLECTIVE_CALLS)) is None or last.done():
                done()

    def release_tensors(self) -> None:
        """Do nothing: a thread releases the tensors of a call when it ends."""

    def drain(self, *queues: Hashable) -> None:
        """Wait until the queues are empty; a call of one of them does not wait."""
        if torch.compiler.is_dynamo_compiling():
            return  # a graph's calls do, when they run
        if self._runs_here():
            return
        for queue in queues:
            if queue in self._last:
                self._last[queue].exception()

    def _runs_here(self) -> bool:
        return any(worker.runs_here() for worker in self._workers.copy().values())

    def close(self, why: Exception, wait_s: float = 0.0) -> None:
        """Fail what is not done; wait so long for the threads to come back from calls that have been aborted."""
        with self._lock:
            self._ended = why
        deadline = time.monotonic() + wait_s
        for worker in self._workers.values():
            worker.close(why)
        for worker in self._workers.values():
            worker.join(max(deadline - time.monotonic(), 0))


def _refuse_tracing(what: str) -> None:
    if torch.compiler.is_dynamo_compiling():
        raise NotImplementedError(f"{what} with async_op=True cannot be compiled; leave async_op out")


def _call_after(before: Future[Any] | None, call: Callable[[], Any]) -> Any:
    if before is not None:
        before.exception()
    return call()


_NAP_S = 20e-6


def blocking() -> bool:
    """Whether wait() holds up the host, too, as with NCCL's group."""
    return env.foreign("TORCH_NCCL_BLOCKING_WAIT") == "1"


def finish(event: torch.cuda.Event, timeout: datetime.timedelta | None) -> None:
    deadline = time.monotonic() + timeout.total_seconds() if timeout else math.inf
    while not event.query():
        if time.monotonic() > deadline:
            raise CommTimeout(f"a call on the GPU is not done after {timeout}; it continues in the background")
        time.sleep(_NAP_S)


class StreamWork(Work):
    """A call under way on another stream; wait() makes the current stream wait, not the host, as torch's does.

    `held` has what the call reads and writes, until the stream `caller` has waited: what comes there next may use the
    memory anew. In a graph (None) any stream's wait does.
    """

    def __init__(
        self, event: torch.cuda.Event, result: Any, held: list[object], caller: object, executor: StreamExecutor
    ) -> None:
        super().__init__()
        self._event, self._result, self._held, self._caller, self._executor = event, result, held, caller, executor

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Order the current stream behind the call."""
        current = self._executor.current_stream()
        self._event.wait(current)
        if self._caller is None or self._caller is current:
            self._held.clear()
        if self._executor.blocks:
            finish(self._event, timeout)
        return True

    def is_completed(self) -> bool:
        return bool(self._event.query())

    is_success = is_completed

    def exception(self) -> BaseException | None:
        """Return None: failures show in the communicator's next call or check()."""
        return None

    def result(self) -> Any:
        self.wait()
        return self._result

    def get_future(self) -> TorchFuture[Any]:
        target: TorchFuture[Any] = TorchFuture(devices=[self._executor.device])
        with torch.cuda.stream(torch.cuda.Stream(self._executor.device)):
            self.wait()
            target.set_result(self._result)
        return target


class StreamExecutor:
    """Makes asynchronous calls on a second stream; the backend keeps calls in order over streams itself."""

    spares = True
    orders_later_calls = False

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams: dict[int, torch.cuda.Stream] = {}  # by address; torch makes an object whenever it is asked
        self._side: torch.cuda.Stream | None = None
        self._lock = threading.Lock()  # of the event behind which a call begins
        self.blocks = blocking()
        self._held: deque[tuple[torch.cuda.Event, list[object]]] = deque()  # what calls under way read and write
        self.used = False

    def current_stream(self) -> torch.cuda.Stream:
        address = torch._C._cuda_getCurrentRawStream(self.device.index)
        stream = self._streams.get(address)
        if stream is None:
            stream = self._streams[address] = torch.cuda.current_stream(self.device)
        return stream

    def submit(self, queue: Hashable, what: str, call: Callable[[], Any]) -> StreamWork:
        """Make the call behind what the current stream has so far."""
        _refuse_tracing(what)
        if self._side is None:
            # High priority: where products of the caller's fill the GPU, few blocks need not wait for all of theirs.
            self._side, self._begun = torch.cuda.Stream(self.device, priority=-1), torch.cuda.Event()
        side, caller, captured = self._side, self.current_stream(), torch.cuda.is_current_stream_capturing()
        with self._lock:
            begun = torch.cuda.Event() if captured else self._begun
            begun.record(caller)
            begun.wait(side)
        device = torch.cuda.current_device()
        torch.cuda.set_stream(side)  # and its device
        try:
            result = call()
        finally:
            torch.cuda.set_stream(caller)
            if device != self.device.index:
                torch.cuda.set_device(device)
        event = side.record_event()
        held: list[object] = [call]
        if captured:
            return StreamWork(event, result, held, None, self)
        while self._held and (not self._held[0][1] or self._held[0][0].query()):
            self._held.popleft()
        self._held.append((event, held))
        return StreamWork(event, result, held, caller, self)

    def release_tensors(self) -> None:
        """Release the tensors of calls, once they are over: then all ranks have the same memory free."""
        if self._held and not torch.cuda.is_current_stream_capturing():
            self._held[-1][0].synchronize()
            self._held.clear()

    def drain(self, *queues: Hashable) -> None:
        """Nothing waits on the host."""

    def wait_pending(self, done: Callable[[], object]) -> None:
        """Nothing is ordered on the host."""

    def close(self, why: Exception, wait_s: float = 0.0) -> None:
        self._held.clear()
