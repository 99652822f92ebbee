"""What the hier_* algorithms share: shared memory inside each host, messages between them, folds in the hosts' order.

A lane is one rank of each host. What a host has is shared out to its lanes, which exchange their shares in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from commlib.backends.hosts import Hosts
from commlib.backends.torch_dist import TorchBackend
from commlib.collectives.reference import ordered


def hosts_of(backend: TorchBackend) -> Hosts:
    """Return the hosts of a backend; the plan names a hier_* algorithm only where there are some."""
    assert backend.hosts is not None
    return backend.hosts


def refuses_narrow(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Why hosts do not exchange partial results of this type, or None."""
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        return f"the hosts' partial results would be rounded to {dtype}"
    return None


def inside(redop: str) -> str:
    """Return the reduction inside a host: an average is a sum that is divided once, at the end."""
    return "sum" if redop == "avg" else redop


def shares(count: int, lanes: int, ranks: int) -> list[int]:
    """Return the elements of each rank's share: almost equal ones for the ranks of the lanes, none for the others."""
    ends = [count * lane // lanes for lane in range(lanes + 1)]
    return [end - start for start, end in pairwise(ends)] + [0] * (ranks - lanes)


def fold(parts: torch.Tensor, redop: str, size: int) -> torch.Tensor:
    """Reduce the hosts' parts, the rows, in the order of the hosts; an average is over `size` ranks."""
    return ordered(list(parts), redop, size)


def swap(backend: TorchBackend, rows: torch.Tensor, what: str) -> torch.Tensor:
    """Send row h to host h of this lane; return the rows that came, by host."""
    hosts, came = hosts_of(backend), torch.empty_like(rows)
    came[hosts.here] = rows[hosts.here]
    others = [(host, peer) for host, peer in enumerate(hosts.lane) if host != hosts.here]
    backend.exchange(what, [(peer, rows[host]) for host, peer in others], [(peer, came[host]) for host, peer in others])
    return came


def gather(backend: TorchBackend, mine: torch.Tensor, peers: Sequence[int], what: str) -> torch.Tensor:
    """Return the tensors of one rank of each host, by host; what is known doubles with each message (Bruck)."""
    here, count = hosts_of(backend).here, len(peers)
    rows = mine.new_empty((count, mine.numel()))
    rows[0] = mine  # row i is that of host here + i
    known = 1
    while known < count:
        new = min(known, count - known)
        to, source = peers[(here - known) % count], peers[(here + known) % count]
        backend.exchange(what, [(to, rows[:new])], [(source, rows[known : known + new])])
        known += new
    return rows.roll(here, 0) if here else rows


def spread(backend: TorchBackend, x: torch.Tensor, peers: Sequence[int], root: int, what: str) -> None:
    """Pass on the tensor of host `root` along a binomial tree of one rank of each host."""
    count, step = len(peers), 1
    me = (hosts_of(backend).here - root) % count
    while step < count:
        if me < step and me + step < count:
            backend.exchange(what, [(peers[(me + step + root) % count], x)], [])
        elif step <= me < 2 * step:
            backend.exchange(what, [], [(peers[(me - step + root) % count], x)])
        step *= 2


@dataclass(frozen=True)
class Sections:
    """Where the blocks of all ranks lie that belong to a host, and what of them each rank of a lane exchanges.

    Where every host has a rank in each lane, the share of a rank is the block of its number there.
    """

    hosts: Hosts
    sizes: Sequence[int]

    def of(self, host: int) -> list[int]:
        """Return the sizes of the blocks of a host's ranks."""
        return [self.sizes[rank] for rank in self.hosts.ranks[host]]

    def cut(self, host: int) -> list[int]:
        """Return the size of the share that each rank of this host has of another host's section."""
        blocks, hosts = self.of(host), self.hosts
        return blocks if hosts.even else shares(sum(blocks), hosts.lanes, len(hosts.own))

    def views(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """Return the section of each host: a part of `whole` where ranks are in the order of their hosts, else new."""
        if self.hosts.in_order:
            return list(whole.split([sum(self.of(host)) for host in range(len(self.hosts.ranks))]))
        return [whole.new_empty(sum(self.of(host))) for host in range(len(self.hosts.ranks))]

    def filled(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """Return the sections with what `whole` has."""
        if self.hosts.in_order:
            return self.views(whole)
        blocks = whole.split(list(self.sizes))
        return [torch.cat([blocks[rank] for rank in members]) for members in self.hosts.ranks]

    def put(self, sections: Sequence[torch.Tensor], whole: torch.Tensor) -> None:
        """Copy what lies in new sections to its place in `whole`."""
        if self.hosts.in_order:
            return
        blocks = whole.split(list(self.sizes))
        for host, section in enumerate(sections):
            for rank, block in zip(self.hosts.ranks[host], section.split(self.of(host)), strict=True):
                blocks[rank].copy_(block)


def share_of(section: torch.Tensor, cut: Sequence[int], local: int) -> torch.Tensor:
    """Cut out the share of the rank with number `local` on its host."""
    start = [0, *accumulate(cut)][local]
    return section[start : start + cut[local]]
