"""Hooks: functions of the program for the error that ends a communicator, and for calls that take unusually long."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from threading import Lock
from typing import Any, TypeVar

import torch

from commlib.backends.base import Backend
from commlib.collectives.signatures import kind_of
from commlib.counts import counted
from commlib.debug.record import peers_of
from commlib.errors import Closed, CommError, CommTimeout, PeerLost

T = TypeVar("T")
Kind = tuple[str, int, str]  # of calls that should take the same time: operation, bytes, type
_LOG = logging.getLogger("commlib")
RECENT, KNOWN = 32, 8  # calls whose median is the usual time, and how many of them it takes
MAX_UNDER_WAY = 1000  # calls on a GPU that are not looked at yet; more are not timed
MIN_EXCESS_S = 1e-3  # beyond the usual time: less is noise


@dataclass(frozen=True)
class SlowCall:
    """A call that took unusually long; `waited_s` is how long it waited for each other rank, where that is known."""

    op: str
    num_bytes: int
    dtype: str
    seconds: float
    usual_s: float
    waited_s: dict[int, float]

    @property
    def late(self) -> int | None:
        """The rank for which it waited most of the time that is too much; None: none."""
        rank = max(self.waited_s, key=lambda rank: self.waited_s[rank], default=None)
        return rank if rank is not None and self.waited_s[rank] > (self.seconds - self.usual_s) / 2 else None

    def __str__(self) -> str:
        """Return 'all_reduce of 32 bytes (float32) took 52.0 ms, usually 0.1 ms; 51.8 ms of it waiting for rank 2'."""
        took = f"{self.op} of {counted(self.num_bytes, 'byte')} ({self.dtype}) took {self.seconds * 1e3:.1f} ms"
        text = f"{took}, usually {self.usual_s * 1e3:.1f} ms"
        if self.late is None:
            return text
        return f"{text}; {self.waited_s[self.late] * 1e3:.1f} ms of it waiting for rank {self.late}"


class Hooks:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._on_error: list[Callable[[CommError], object]] = []
        self._on_slow: list[tuple[Callable[[SlowCall], object], float]] = []
        self._reported = Lock()
        self._recent: dict[Kind, deque[float]] = {}
        self._under_way: deque[tuple[Kind, torch.cuda.Event, torch.cuda.Event]] = deque()
        self._peers = peers_of(backend.recorded_as)

    def on_error(self, callback: Callable[[CommError], object]) -> None:
        self._on_error.append(_callable(callback))

    def on_slow(self, callback: Callable[[SlowCall], object], factor: float) -> None:
        if not factor > 1:
            raise ValueError(f"factor is {factor!r}, but must be above 1")
        self._on_slow.append((_callable(callback), factor))

    def observe(self, name: str, run: Callable[..., Any], *arguments: Any) -> Any:
        """Make the call; time it where there are functions for slow ones."""
        if not self._on_slow:
            return self.watch(run, *arguments)
        if self._backend.device.type != "cpu":
            return self._on_gpu(name, run, *arguments)
        before, start = self._waited_ns(), time.perf_counter()
        result = self.watch(run, *arguments)
        seconds, after = time.perf_counter() - start, self._waited_ns()
        pairs = enumerate(zip(before, after, strict=True))
        waited = {rank: (now - then) / 1e9 for rank, (then, now) in pairs if rank != self._backend.rank}
        self._look(self._kind(name, arguments), seconds, waited)
        return result

    def _waited_ns(self) -> list[int]:
        return [peer.waited_ns for peer in self._peers]

    def _on_gpu(self, name: str, run: Callable[..., Any], *arguments: Any) -> Any:
        """Time it by events around it, which are looked at when later calls are made; what is captured is not timed."""
        with torch.cuda.device(self._backend.device):
            if torch.cuda.is_current_stream_capturing():
                return self.watch(run, *arguments)
            while self._under_way and self._under_way[0][2].query():
                kind, start, end = self._under_way.popleft()
                self._look(kind, start.elapsed_time(end) / 1e3, {})
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            result = self.watch(run, *arguments)
            end.record()
        if len(self._under_way) < MAX_UNDER_WAY:
            self._under_way.append((self._kind(name, arguments), start, end))
        return result

    def watch(self, run: Callable[..., T], *arguments: Any) -> T:
        """Do it; tell of the error that has ended the communicator before raising it."""
        try:
            return run(*arguments)
        except Closed:
            raise
        except CommError as error:
            if self._on_error and self._has_ended(error) and self._reported.acquire(blocking=False):
                for callback in self._on_error:
                    _run(callback, error)
            raise

    def _has_ended(self, error: CommError) -> bool:
        if isinstance(error, (PeerLost, CommTimeout)):
            return True
        try:
            self._backend.check()
        except CommError:
            return True
        return False

    def _kind(self, name: str, arguments: tuple[Any, ...]) -> Kind:
        num_bytes, dtype, _ = kind_of(name, arguments, self._backend.size)
        return name, num_bytes, dtype

    def _look(self, kind: Kind, seconds: float, waited_s: dict[int, float]) -> None:
        recent = self._recent.setdefault(kind, deque(maxlen=RECENT))
        usual = median(recent) if len(recent) >= KNOWN else float("inf")
        recent.append(seconds)
        slow = [callback for callback, factor in self._on_slow if seconds >= factor * usual]
        if slow and seconds - usual >= MIN_EXCESS_S:
            for callback in slow:
                _run(callback, SlowCall(*kind, seconds, usual, waited_s))


def _callable(callback: Callable[[T], object]) -> Callable[[T], object]:
    if not callable(callback):
        raise TypeError(f"callback is of type {type(callback).__name__}, but must be a function of one argument")
    return callback


def _run(callback: Callable[[T], object], event: T) -> None:
    """Call it; what it raises is logged, as the caller's own result or error matters more."""
    try:
        callback(event)
    except Exception:
        with suppress(Exception):
            _LOG.exception("a hook of a communicator failed on: %s", event)
