"""The record of a communicator that native code does not run, for `commlib debug`."""

from __future__ import annotations

import json
import os
import secrets
import zlib
from typing import TYPE_CHECKING

from commlib.bootstrap.world import World
from commlib.debug.jobs import ELSEWHERE
from commlib.native import library

if TYPE_CHECKING:
    from commlib._native import Recorder


class Recorded:
    """A record that all ranks of a world begin at once; `recorder` is None where it has no room for so many ranks.

    Of the backend "torch" it is known when calls end; of "torch nccl" and such, only that they were handed over.
    """

    recorder: Recorder | None = None

    def __init__(self, world: World, backend: str, timeout_s: float) -> None:
        self.id: int = world.exchange(secrets.randbits(62), timeout_s)[0]
        mine = world.infos[world.rank]
        pids: list[int] = []
        elsewhere: dict[int, str] = {}
        for info in world.infos:
            if (info.boot, info.pid_namespace) != (mine.boot, mine.pid_namespace):  # the number means nothing here
                identity = f"{info.boot} {info.pid_namespace} {info.pid}"
                pids.append(-1 - (zlib.crc32(identity.encode()) & 0x3FFFFFFF))
                elsewhere[pids[-1]] = f"{info.hostname}:{info.pid}"
            else:
                pids.append(info.pid)
        self._fd = -1
        if elsewhere:
            self._fd = os.memfd_create(ELSEWHERE)
            os.write(self._fd, json.dumps(elsewhere).encode())
        if world.size <= library.max_shm_ranks():
            self.recorder = library.open_recorder(backend[:11], self.id, world.rank, timeout_s, pids)

    def close(self) -> None:
        """End it; twice is fine."""
        if self.recorder is not None:
            self.recorder.close()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
