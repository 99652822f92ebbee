"""Hosts: where the ranks of a world are, and the shared memory of those on this host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING

import torch

from commlib.backends.base import Options
from commlib.backends.shm import ShmBackend
from commlib.bootstrap.part import Part
from commlib.bootstrap.world import World

if TYPE_CHECKING:
    from commlib._native import Calls

KEPT_BYTES = 64 << 20  # of scratch memory for each use


class Hosts:
    """A world over hosts: `ranks` of each, and on this one (number `here`) a communicator `inside`.

    A lane is one rank of each host, those with the same number there; every host has a rank in each of the `lanes`.
    """

    def __init__(self, world: World, ranks: Sequence[Sequence[int]], options: Options) -> None:
        self.ranks = ranks
        self.here = next(host for host, members in enumerate(ranks) if world.rank in members)
        self.part = Part(world, ranks[self.here])
        self.local = self.part.rank
        self.lanes = min(map(len, ranks))
        self.even = all(len(members) == self.lanes for members in ranks)
        self.in_order = list(chain(*ranks)) == list(range(world.size))
        self._kept: dict[str, torch.Tensor] = {}
        make = partial(ShmBackend, self.part, replace(options, max_bytes=0, nccl_comm=None))
        self.inside = self.part.make(make, options.timeout_s)

    def scratch(self, use: str, count: int, like: torch.Tensor) -> torch.Tensor:
        """Return memory that the next call uses again: the pages of fresh memory cost more than the messages."""
        num_bytes = count * like.element_size()
        if num_bytes > KEPT_BYTES:
            return like.new_empty(count)
        if use not in self._kept or self._kept[use].numel() < num_bytes:
            self._kept[use] = torch.empty(1 << num_bytes.bit_length(), dtype=torch.uint8)
        return self._kept[use][:num_bytes].view(like.dtype)

    @cached_property
    def calls(self) -> Calls:
        """The collectives of the ranks of this host."""
        calls = self.inside.calls()
        calls.keep_versions()  # the call that these are part of has raised them
        return calls

    @property
    def own(self) -> Sequence[int]:
        """The ranks of this host."""
        return self.ranks[self.here]

    @cached_property
    def lane(self) -> list[int]:
        """The ranks of this rank's lane by host; none for ranks beyond the last lane."""
        return [members[self.local] for members in self.ranks] if self.local < self.lanes else []

    @cached_property
    def others(self) -> list[tuple[int, int]]:
        """The other hosts and their ranks of this lane, the next one first: so no host gets all first messages."""
        order = [(self.here + step) % len(self.ranks) for step in range(1, len(self.ranks))]
        return [(host, self.lane[host]) for host in order if self.lane]

    def delegates(self, root: int) -> tuple[list[int], int]:
        """Return a rank of each host, `root` among them, and its host."""
        home = next(host for host, members in enumerate(self.ranks) if root in members)
        return [root if host == home else members[0] for host, members in enumerate(self.ranks)], home
