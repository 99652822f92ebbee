"""Which ranks are on one host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from commlib.bootstrap.process_info import ProcessInfo, process_info
from commlib.bootstrap.world import World, named


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
    for rank, text in enumerate(world.all_gather(process_info().encode(), timeout_s)):
        info = ProcessInfo.read(text)
        host = Host(info.hostname, f"user {info.user}, {info.pid_namespace}, boot {info.boot}", [])
        hosts.setdefault((info.boot, info.pid_namespace, info.user, info.host), host).ranks.append(rank)
    return list(hosts.values())


def hosts_text(hosts: Sequence[Host]) -> str:
    distinct = len({host.name for host in hosts}) == len(hosts)
    return "; ".join(f"{named(host.ranks)} on {host.name}" + f" ({host.space})" * (not distinct) for host in hosts)


def one_host(world: World, timeout_s: float) -> bool:
    return len(hosts_of(world, timeout_s)) == 1


def local_rank(rank: int, infos: Sequence[ProcessInfo]) -> int:
    """Return how many of the ranks before this one are on its host."""
    hosts = [(info.boot, info.hostname) for info in infos]
    return hosts[:rank].count(hosts[rank])
