"""World: who the ranks are, which processes, and where; and an exchange between them that never waits for ever."""

from __future__ import annotations

import json
import os
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from commlib import env
from commlib.counts import ranks_text
from commlib.debug.jobs import state_of


class Identity(NamedTuple):
    """Who a launcher says this process is: its rank, how many there are, and its number on this host."""

    rank: int
    size: int
    local_rank: int | None = None


class ProcessInfo(NamedTuple):
    """Where a process runs; its number means something to processes of the same `place` only."""

    boot: str  # id of the booted kernel
    hostname: str  # COMMLIB_HOST, else the host's name: containers of one host share `boot`, but not its devices
    pid_namespace: str
    user: int
    host: str  # COMMLIB_HOST
    pid: int
    token: str = ""  # random, so that nobody ever puts down the same

    @classmethod
    def read(cls, text: bytes) -> ProcessInfo:
        return cls(*json.loads(text))

    def encode(self) -> bytes:
        return json.dumps(self).encode()

    @property
    def place(self) -> tuple[str, str, str]:
        """What processes that see each other have in common."""
        return self[:3]

    def is_running(self) -> bool:
        """Whether this process, which must be of our place, has not ended; a process without a parent's wait has."""
        return state_of(self.pid) not in "ZX"

    def meets(self, other: ProcessInfo) -> bool:
        """Whether the other one is another process of this host, which lives."""
        return other.pid != self.pid and other.place == self.place and other.is_running()


def process_info() -> ProcessInfo:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    pid_namespace = str(Path("/proc/self/ns/pid").readlink())
    host = env.HOST.get()
    hostname, token = host or socket.gethostname(), secrets.token_hex(16)
    return ProcessInfo(boot, hostname, pid_namespace, os.geteuid(), host, os.getpid(), token)


class Host(NamedTuple):
    """Ranks that can share memory: processes of one user on one booted kernel, which see each other."""

    name: str
    space: str  # what separates it from other hosts of that name
    ranks: list[int]


class World(ABC):
    """The ranks of one job as their launcher made them; only set-up and control traffic goes here."""

    name: str
    rank: int
    size: int
    local_rank: int
    infos: Sequence[ProcessInfo]  # of each rank
    address = ""  # at which the ranks of other hosts reach this one, where that is known
    device = ""  # the kind of the tensors' device, where that is settled

    @abstractmethod
    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Return every rank's bytes in rank order, or raise PeerLost / CommTimeout naming ranks."""

    def exchange(self, value: Any, timeout_s: float) -> list[Any]:
        """Return every rank's value, which JSON can hold."""
        return [json.loads(data) for data in self.all_gather(json.dumps(value).encode(), timeout_s)]

    def failures(self, failure: str, timeout_s: float) -> list[str]:
        """Return what failed on which ranks, so that all of them fail together; `failure` is this rank's, if any."""
        return [f"rank {rank}: {text}" for rank, text in enumerate(self.exchange(failure, timeout_s)) if text]

    def hosts(self) -> list[Host]:
        """Return the hosts, in the order of their first ranks.

        Where COMMLIB_HOST is set, only ranks with the same name are on one host.
        """
        hosts: dict[tuple[object, ...], Host] = {}
        for rank, info in enumerate(self.infos):
            host = Host(info.hostname, f"user {info.user}, {info.pid_namespace}, boot {info.boot}", [])
            hosts.setdefault((info.boot, info.pid_namespace, info.user, info.host), host).ranks.append(rank)
        return list(hosts.values())

    def count_local_rank(self) -> int:
        hosts = [(info.boot, info.hostname) for info in self.infos]
        return hosts[: self.rank].count(hosts[self.rank])

    def close(self) -> None:
        """Release what the exchange holds; calling it twice is fine."""


class SingleWorld(World):
    name = "single"
    rank = 0
    size = 1
    local_rank = 0

    def __init__(self) -> None:
        self.infos = [process_info()]

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        return [data]


def hosts_text(hosts: Sequence[Host]) -> str:
    distinct = len({host.name for host in hosts}) == len(hosts)
    return "; ".join(f"{ranks_text(host.ranks)} on {host.name}" + f" ({host.space})" * (not distinct) for host in hosts)


def two_processes(rank: int, first: int, second: int, where: str) -> str:
    return (
        f"processes {first} and {second} both are rank {rank} ({where}): two jobs meet at one address, or two ranks "
        f"have one number; give each job another address, and each rank another number"
    )
