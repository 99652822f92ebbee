"""Which process this is, in a form that other processes compare with theirs, and whether such a process still runs."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from commlib import env


class ProcessInfo(NamedTuple):
    """Where a process runs; its number means something to processes of the same `place` only."""

    boot: str  # id of the booted kernel
    hostname: str  # COMMLIB_HOST, else the host's name: containers of one host share `boot`, but not its devices
    pid_namespace: str
    user: int
    host: str  # COMMLIB_HOST
    pid: int

    @classmethod
    def read(cls, text: str | bytes) -> ProcessInfo:
        """Return what another process wrote."""
        return cls(*json.loads(text))

    def encode(self) -> bytes:
        return json.dumps(self).encode()

    @property
    def place(self) -> tuple[str, str, str]:
        """What processes that see each other have in common."""
        return self[:3]

    def is_running(self) -> bool:
        """Whether this process, which must be of our place, has not ended; a process without a parent's wait has."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except (ProcessLookupError, PermissionError):
            return False
        try:
            return not _has_exited(pidfd)
        finally:
            os.close(pidfd)


def process_info() -> ProcessInfo:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    pid_namespace = str(Path("/proc/self/ns/pid").readlink())
    host = env.HOST.get()
    return ProcessInfo(boot, host or socket.gethostname(), pid_namespace, os.geteuid(), host, os.getpid())


class ProcessWatch:
    """Watches the ranks of this host through pidfds, which also see a dead process that nobody has waited for."""

    def __init__(self, rank: int, infos: Sequence[ProcessInfo]) -> None:
        self._pidfds: dict[int, int | None] = {}  # None: it died before we opened it
        for peer, info in enumerate(infos):
            if peer != rank and info.place == infos[rank].place:
                try:
                    self._pidfds[peer] = os.pidfd_open(info.pid)
                except ProcessLookupError:
                    self._pidfds[peer] = None
                except PermissionError:
                    continue

    def dead(self, ranks: Iterable[int]) -> list[int]:
        """Return those of `ranks` that are known to have died; ranks of other hosts never are."""
        return [rank for rank in ranks if rank in self._pidfds and _has_exited(self._pidfds[rank])]

    def close(self) -> None:
        for pidfd in self._pidfds.values():
            if pidfd is not None:
                os.close(pidfd)
        self._pidfds.clear()


def _has_exited(pidfd: int | None) -> bool:
    if pidfd is None:
        return True
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
