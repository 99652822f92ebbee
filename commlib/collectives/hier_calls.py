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
from commlib.collectives.spec import Link


def hosts_of(backend: TorchBackend) -> Hosts:
    """Return the hosts of a backend; the plan names a hier_* algorithm only where there are some."""
    assert backend.hosts is not None
    return backend.hosts


def refuses_narrow(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Why hosts do not exchange partial results of this type, or None."""
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        return f"the hosts' partial results would be rounded to {dtype}"
    return None


def doublings(hosts: int) -> int:
    """Return the steps in which what one host knows reaches all, if who knows it doubles with each."""
    return (hosts - 1).bit_length()


def doubling(hosts: int, num_bytes: int) -> Link:
    """What goes between hosts where one rank of each gathers the whole of all."""
    return Link(doublings(hosts), (hosts - 1) * num_bytes)


def one_exchange(hosts: int, num_bytes: int) -> Link:
    """What goes between hosts where each has a part for every other."""
    return Link(hosts - 1, (hosts - 1) * num_bytes // hosts)


def two_exchanges(hosts: int, num_bytes: int) -> Link:
    """What goes between hosts where each then sends its part on to all."""
    return Link(2 * (hosts - 1), 2 * (hosts - 1) * num_bytes // hosts)


def inside(redop: str) -> str:
    """Return the reduction inside a host: an average is a sum that is divided once, at the end."""
    return "sum" if redop == "avg" else redop


def shares(count: int, lanes: int, ranks: int) -> list[int]:
    """Return the elements of each rank's share: almost equal ones for the ranks of the lanes, none for the others."""
    ends = [count * lane // lanes for lane in range(lanes + 1)]
    return [end - start for start, end in pairwise(ends)] + [0] * (ranks - lanes)


def room(hosts: Hosts, counts: Sequence[int], like: torch.Tensor) -> list[torch.Tensor]:
    """Return tensors with so many elements, in memory that the next call uses again."""
    return list(hosts.scratch("room", sum(counts), like).split(list(counts)))


def fold(parts: torch.Tensor, redop: str, size: int) -> torch.Tensor:
    """Reduce the hosts' parts, the rows, in the order of the hosts; an average is over `size` ranks."""
    return ordered(list(parts), redop, size)


def swap(backend: TorchBackend, rows: torch.Tensor, what: str) -> torch.Tensor:
    """Send row h to host h of this lane; return the rows that came, by host."""
    hosts = hosts_of(backend)
    came = hosts.scratch("came", rows.numel(), rows).view(rows.shape)
    came[hosts.here] = rows[hosts.here]
    to = [(peer, rows[host]) for host, peer in hosts.others]
    backend.exchange(what, to, [(peer, came[host]) for host, peer in hosts.others])
    return came


def complete(backend: TorchBackend, rows: torch.Tensor, what: str) -> None:
    """Send row `here` to all hosts of this lane, and get theirs: soonest for large rows, of which none is copied."""
    hosts = hosts_of(backend)
    own = [(peer, rows[hosts.here]) for _, peer in hosts.others]
    backend.exchange(what, own, [(peer, rows[host]) for host, peer in hosts.others])


def gather(backend: TorchBackend, mine: torch.Tensor, peers: Sequence[int], what: str) -> torch.Tensor:
    """Return the tensors of one rank of each host, by host; what is known doubles with each message: for small ones."""
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
