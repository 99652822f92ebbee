"""The ranks on this host: how many come before this one, and which of them have died."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path


def card() -> bytes:
    """Return what a rank tells the others about where it runs: host, pid namespace, pid."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # The name beside the boot id: containers of one host share its boot id, but not its devices.
    pid_namespace = str(Path("/proc/self/ns/pid").readlink())
    return json.dumps([f"{boot}/{socket.gethostname()}", pid_namespace, os.getpid()]).encode()


class Neighbours:
    """Watches the ranks of this host through pidfds, which also see a dead process nobody has reaped."""

    def __init__(self, rank: int, cards: Sequence[bytes]) -> None:
        places = [json.loads(text) for text in cards]
        host, pid_namespace, _ = places[rank]
        self.local_rank = sum(place[0] == host for place in places[:rank])
        self._pidfds: dict[int, int | None] = {}
        for peer, (peer_host, peer_namespace, pid) in enumerate(places):
            if peer != rank and (peer_host, peer_namespace) == (host, pid_namespace):
                with contextlib.suppress(PermissionError):
                    self._pidfds[peer] = _pidfd(pid)

    def dead(self, ranks: Iterable[int]) -> list[int]:
        """Return those of `ranks` that are known to have died; ranks of other hosts never are."""
        return [rank for rank in ranks if rank in self._pidfds and _exited(self._pidfds[rank])]

    def close(self) -> None:
        """Give the descriptors back."""
        for pidfd in self._pidfds.values():
            if pidfd is not None:
                os.close(pidfd)
        self._pidfds.clear()


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None  # it died between telling its pid and now


def _exited(pidfd: int | None) -> bool:
    if pidfd is None:
        return True
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
