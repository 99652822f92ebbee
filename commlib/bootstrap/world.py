"""World: who the ranks are, and a byte-level exchange between them that never waits for ever."""

from __future__ import annotations

from abc import ABC, abstractmethod

from commlib.errors import CommTimeout


class World(ABC):
    """The ranks of one job as their launcher made them; only set-up and control traffic goes here."""

    name: str
    rank: int
    size: int
    local_rank: int
    address = ""  # at which the ranks of other hosts reach this one, where that is known
    device = ""  # the kind of the tensors' device, where that is settled

    @abstractmethod
    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Return every rank's bytes in rank order, or raise PeerLost / CommTimeout naming ranks."""

    def broadcast(self, data: bytes, src: int, timeout_s: float) -> bytes:
        return self.all_gather(data if self.rank == src else b"", timeout_s)[src]

    def late(self, timeout_s: float, exchange: int, who: str) -> CommTimeout:
        """Return the error of an exchange that `who` did not come to."""
        return CommTimeout(
            f"rank {self.rank} waited {timeout_s:g} s in init() for {who} ({self.name}, exchange {exchange}); "
            "raise timeout_s if starting takes longer"
        )

    def close(self) -> None:
        """Release what the exchange holds; calling it twice is fine."""


class SingleWorld(World):
    """A process that no launcher started: a world of one."""

    name = "single"
    rank = 0
    size = 1
    local_rank = 0

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        return [data]


def named(ranks: list[int]) -> str:
    """Write 'rank 1' or 'ranks 1, 2'."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def two_processes(rank: int, first: int, second: int, where: str) -> str:
    return (
        f"processes {first} and {second} both are rank {rank} ({where}): two jobs meet at one address, or two ranks "
        f"have one number; give each job another address, and each rank another number"
    )
