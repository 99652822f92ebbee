"""World: who the ranks are, and a byte-level exchange between them that never waits for ever."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path


class World(ABC):
    """The ranks of one job as their launcher made them; only set-up and control traffic goes here."""

    name: str
    rank: int
    size: int
    local_rank: int

    @abstractmethod
    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Return every rank's bytes in rank order, or raise PeerLost / CommTimeout naming ranks."""

    def broadcast(self, data: bytes, src: int, timeout_s: float) -> bytes:
        """Return `src`'s bytes on every rank."""
        return self.all_gather(data if self.rank == src else b"", timeout_s)[src]

    def close(self) -> None:
        """Release what the exchange holds; calling it twice is fine."""


class SingleWorld(World):
    """A process that no launcher started: a world of one."""

    name = "single"
    rank = 0
    size = 1
    local_rank = 0

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Return the one rank's bytes."""
        return [data]


def one_host(world: World, timeout_s: float) -> bool:
    """Whether all ranks are processes of one user on one booted kernel, and see each other."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    here = f"{boot}/{Path('/proc/self/ns/pid').readlink()}/{os.geteuid()}"
    return len(set(world.all_gather(here.encode(), timeout_s))) == 1
