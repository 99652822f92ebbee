"""Which ranks are on one host."""

from __future__ import annotations

from collections.abc import Sequence

from commlib.bootstrap.world import World
from commlib.process_info import ProcessInfo, process_info


def hosts_of(world: World, timeout_s: float) -> list[list[int]]:
    """Return the ranks of each host, in the order of their first ranks.

    A host is what shared memory needs: processes of one user on one booted kernel, which see each other. With
    COMMLIB_HOST, only ranks with the same name are on one host.
    """
    hosts: dict[tuple[object, ...], list[int]] = {}
    for rank, text in enumerate(world.all_gather(process_info().encode(), timeout_s)):
        info = ProcessInfo.read(text)
        hosts.setdefault((info.boot, info.pid_namespace, info.user, info.host), []).append(rank)
    return list(hosts.values())


def one_host(world: World, timeout_s: float) -> bool:
    """Whether all ranks are on one host."""
    return len(hosts_of(world, timeout_s)) == 1


def local_rank(rank: int, infos: Sequence[ProcessInfo]) -> int:
    """Return how many of the ranks before this one are on its host."""
    hosts = [(info.boot, info.hostname) for info in infos]
    return hosts[:rank].count(hosts[rank])
