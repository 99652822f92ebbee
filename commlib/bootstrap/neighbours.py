"""Where ranks run: on which hosts, how many come before this one there, and which of them have died."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from commlib import env
from commlib.bootstrap.world import World, named


def card() -> bytes:
    """Return what a rank tells the others about where it runs: kernel, host, pid namespace, user, given name, pid."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    pid_namespace = str(Path("/proc/self/ns/pid").readlink())
    # The name beside the boot id: containers of one host share its boot id, but not its devices.
    given = env.HOST.get()
    return json.dumps([boot, given or socket.gethostname(), pid_namespace, os.geteuid(), given, os.getpid()]).encode()


class Host(NamedTuple):
    """Ranks that can share memory: processes of one user on one booted kernel, which see each other."""

    name: str
    space: str  # what separates it from other hosts of that name
    ranks: list[int]


def hosts_of(world: World, timeout_s: float) -> list[Host]:
    """Return the hosts of a world, in the order of their first ranks.

    Where COMMLIB_HOST is set, only ranks with the same name are on one host.
    """
    hosts: dict[tuple[object, ...], Host] = {}
    for rank, text in enumerate(world.all_gather(card(), timeout_s)):
        boot, name, namespace, user, chosen, _ = json.loads(text)
        host = Host(name, f"user {user}, {namespace}, boot {boot}", [])
        hosts.setdefault((boot, namespace, user, chosen), host).ranks.append(rank)
    return list(hosts.values())


def hosts_text(hosts: Sequence[Host]) -> str:
    """Say which ranks are on which host."""
    distinct = len({host.name for host in hosts}) == len(hosts)
    return "; ".join(f"{named(host.ranks)} on {host.name}" + f" ({host.space})" * (not distinct) for host in hosts)


def one_host(world: World, timeout_s: float) -> bool:
    """Whether all ranks are on one host."""
    return len(hosts_of(world, timeout_s)) == 1


def local_rank(rank: int, cards: Sequence[bytes]) -> int:
    """Return how many of the ranks before this one are on its host."""
    hosts = [json.loads(text)[:2] for text in cards]
    return hosts[:rank].count(hosts[rank])


def kinship(first: int, second: int) -> int:
    """Return how close two processes of this host are, as the same parent, process group or session shows; 0 to 3."""
    try:
        families = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1:4] for pid in (first, second)]
    except OSError:  # it has ended
        return 0
    return sum(one == other for one, other in zip(*families, strict=True))


def twin(text: bytes) -> int:
    """Return the process that wrote a card, if it is another one than this and lives on this host; else 0."""
    theirs, ours = json.loads(text), json.loads(card())
    if theirs[:3] != ours[:3] or theirs[-1] == ours[-1]:
        return 0
    try:
        pidfd = os.pidfd_open(theirs[-1])
    except (ProcessLookupError, PermissionError):
        return 0
    try:
        return 0 if _exited(pidfd) else int(theirs[-1])
    finally:
        os.close(pidfd)


class Neighbours:
    """Watches the ranks of this host through pidfds, which also see a dead process nobody has reaped."""

    def __init__(self, rank: int, cards: Sequence[bytes]) -> None:
        places = [json.loads(text) for text in cards]
        self.local_rank = local_rank(rank, cards)
        self._pidfds: dict[int, int | None] = {}  # None: it died between telling its pid and now
        for peer, place in enumerate(places):
            if peer != rank and place[:3] == places[rank][:3]:
                try:
                    self._pidfds[peer] = os.pidfd_open(place[-1])
                except ProcessLookupError:
                    self._pidfds[peer] = None
                except PermissionError:
                    continue

    def dead(self, ranks: Iterable[int]) -> list[int]:
        """Return those of `ranks` that are known to have died; ranks of other hosts never are."""
        return [rank for rank in ranks if rank in self._pidfds and _exited(self._pidfds[rank])]

    def close(self) -> None:
        """Give the descriptors back."""
        for pidfd in self._pidfds.values():
            if pidfd is not None:
                os.close(pidfd)
        self._pidfds.clear()


def _exited(pidfd: int | None) -> bool:
    if pidfd is None:
        return True
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
