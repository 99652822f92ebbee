"""Card: which process a rank is, also for readers on other hosts, where its number says nothing."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass
from functools import cached_property

from commlib.process_info import process_info

HOSTS = "commlib.hosts"  # memory of a rank that has the cards of all, where some are on other hosts


def here() -> tuple[str, str]:
    """Return what processes that see each other have in common: the booted kernel and the namespace of processes."""
    info = process_info()
    return info.boot, info.pid_namespace


@dataclass(frozen=True)
class Card:
    """A rank's process; at `address`, if there is one, it answers whoever knows `key`."""

    place: tuple[str, str]
    pid: int
    host: str
    address: tuple[str, int] | None = None
    key: str = ""

    @classmethod
    def read(cls, text: str | bytes) -> Card:
        """Return the card that another rank wrote."""
        place, pid, host, address, key = json.loads(text)
        return cls(tuple(place), pid, host, tuple(address) if address else None, key)

    def __str__(self) -> str:
        """Return it as `read` takes it."""
        return json.dumps([self.place, self.pid, self.host, self.address, self.key])

    @cached_property
    def number(self) -> int:
        """Its process; of one elsewhere a number below zero, which all readers elsewhere agree on."""
        return self.pid if self.place == here() else elsewhere(self.place, self.pid)


def elsewhere(place: tuple[str, str], pid: int) -> int:
    """Return the number of a process for those who do not see it."""
    return -1 - (zlib.crc32(f"{place} {pid}".encode()) & 0x3FFFFFFF)


def own_card(host: str) -> Card:
    """Return the card of this process."""
    return Card(here(), os.getpid(), host)
