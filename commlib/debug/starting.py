"""Ranks that wait for others in init(): each says for whom, on stderr and to `commlib debug`."""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from commlib.debug.record import descriptors

NAME = "commlib.init"  # memory of a rank that waits in init()
FIRST_S, LOG_S = 1.0, 10.0
MIN_PAUSE_S, MAX_PAUSE_S = 0.0005, 0.02  # between two looks
_BYTES = 4096
_LOG = logging.getLogger("commlib")


@dataclass(frozen=True)
class Starting:
    """A rank in init(), and for whom it waits."""

    pid: int
    rank: int
    size: int
    since_ns: int
    timeout_s: float
    waits_for: str

    @staticmethod
    def of(pid: int) -> Starting | None:
        """Return what a process waits for in init(), if it does."""
        for fd in descriptors(pid, NAME):
            with suppress(OSError, ValueError):  # it is over
                starting = Starting(**json.loads(fd.read_bytes()))
                if starting.pid == pid:  # a child has it from its parent
                    return starting
        return None

    @property
    def waited_s(self) -> float:
        return (time.monotonic_ns() - self.since_ns) / 1e9

    def __str__(self) -> str:
        """Return 'waits in commlib.init() for rank 1: 12 s of 300 s'."""
        return f"waits in commlib.init() for {self.waits_for}: {self.waited_s:.0f} s of {self.timeout_s:g} s"


class Waiting:
    """One wait of a rank; a log line says it after ten seconds, and again each time that it has doubled."""

    def __init__(self, rank: int, size: int, timeout_s: float) -> None:
        self._starting = Starting(os.getpid(), rank, size, time.monotonic_ns(), timeout_s, "")
        self._fd, self._next_s, self._pause_s = -1, FIRST_S, MIN_PAUSE_S

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def pause(self, who: str, max_pause_s: float = MAX_PAUSE_S) -> None:
        """Wait a moment for a rank, each time a longer one."""
        if self.due():
            self.tell(who)
        self.sleep(max_pause_s)

    def sleep(self, max_pause_s: float = MAX_PAUSE_S) -> None:
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, max_pause_s)

    def due(self) -> bool:
        waited_s = self._starting.waited_s
        if waited_s < self._next_s:
            return False
        self._next_s = LOG_S if waited_s < LOG_S else 2 * self._next_s
        return True

    def tell(self, who: str) -> None:
        """Say for whom this rank waits: at once to `commlib debug`, and after ten seconds on stderr."""
        starting = replace(self._starting, waits_for=who)
        if self._fd < 0:
            self._fd = os.memfd_create(NAME)
        os.pwrite(self._fd, json.dumps(asdict(starting)).encode().ljust(_BYTES), 0)
        if starting.waited_s >= LOG_S:
            _LOG.warning("rank %d %s", starting.rank, starting)
