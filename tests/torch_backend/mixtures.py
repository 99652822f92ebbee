"""Mixtures that nobody planned, through torch.distributed: groups, calls now and later, messages, objects, from a seed.

All ranks draw the same program. Tensors are on torch's default device, so it serves CPUs and GPUs.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from commlib.communicator import Communicator

SIZES = (0, 1, 7, 8, 1000, 33_333, 300_001)
STEPS = 60


class Mixture:
    """A program that all ranks draw from one seed, as one of them runs it, and what it still has to look at."""

    def __init__(self, rank: int, size: int, seed: int, gpu: bool) -> None:
        self.draw, self.rank, self.size = random.Random(seed), rank, size
        self.pending: list[tuple[Any, Sequence[torch.Tensor], Sequence[torch.Tensor]]] = []
        everyone, self.gpu = list(range(size)), gpu
        self.groups: list[tuple[Any, list[int]]] = [(dist.group.WORLD, everyone), (dist.new_group(), everyone)]
        pair = sorted(self.draw.sample(everyone, 2))
        self.groups.append((dist.new_group(pair), pair))

    def tensor(self, rank: int, step: int, count: int) -> torch.Tensor:
        return torch.full((count,), float((7 * rank + 3 * step) % 11))

    def expect(self, work: Any, found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
        """Compare now, or once the call is over."""
        if work is not None:
            self.pending.append((work, found, wanted))
            return
        for x, expected in zip(found, wanted, strict=True):
            assert torch.equal(x, expected)

    def look(self) -> None:
        """Wait for everything that is under way, in any order."""
        pending, self.pending = self.pending, []
        random.Random(self.rank).shuffle(pending)
        for work, found, wanted in pending:
            work.wait()
            self.expect(None, found, wanted)

    def step(self, step: int) -> None:
        """Make one call of some kind; now and then a rank comes late to it."""
        (group, members), count = self.draw.choice(self.groups), self.draw.choice(SIZES)
        later, late = self.draw.random() < 0.4, self.draw.random() < 0.1 and self.draw.randrange(self.size) == self.rank
        kinds: list[Callable[..., None]] = [self.reduce, self.gather, self.scatter, self.exchange, self.broadcast]
        kinds += [self.reduce, self.messages, self.ring, self.objects, self.anew]
        kind = self.draw.choice(kinds)
        if late:
            time.sleep(0.005)
        if kind == self.anew:
            self.anew(members)
        else:
            kind(group, members, step, count, later)
        if self.draw.random() < 0.1:
            self.look()

    def reduce(self, group: Any, members: list[int], step: int, count: int, later: bool) -> None:
        if self.rank in members:
            x = self.tensor(self.rank, step, count)
            work = dist.all_reduce(x, group=group, async_op=later)
            self.expect(work, [x], [sum(self.tensor(rank, step, count) for rank in members)])

    def gather(self, group: Any, members: list[int], step: int, count: int, later: bool) -> None:
        counts = [self.draw.choice((count, count, 7)) for _ in members]
        if self.rank in members:
            outs = [torch.empty(each) for each in counts]
            x = self.tensor(self.rank, step, counts[members.index(self.rank)])
            work = dist.all_gather(outs, x, group=group, async_op=later)
            self.expect(work, outs, [self.tensor(r, step, each) for r, each in zip(members, counts, strict=True)])

    def scatter(self, group: Any, members: list[int], step: int, count: int, later: bool) -> None:
        if self.rank in members:
            out, x = torch.empty(count), self.tensor(self.rank, step, count * len(members))
            work = dist.reduce_scatter(
                out, list(x.chunk(len(members))) if count else [x] * len(members), group=group, async_op=later
            )
            self.expect(work, [out], [sum(self.tensor(rank, step, count) for rank in members)])

    def exchange(self, group: Any, members: list[int], step: int, count: int, later: bool) -> None:
        counts = {(a, b): self.draw.choice((0, 1, 7, count)) for a in members for b in members}
        if self.rank in members:
            given = [self.tensor(self.rank + rank, step, counts[self.rank, rank]) for rank in members]
            outs = [torch.empty(counts[rank, self.rank]) for rank in members]
            work = dist.all_to_all(outs, given, group=group, async_op=later)
            self.expect(work, outs, [self.tensor(rank + self.rank, step, counts[rank, self.rank]) for rank in members])

    def broadcast(self, group: Any, members: list[int], step: int, count: int, later: bool) -> None:
        source = self.draw.choice(members)
        if self.rank in members:
            x = self.tensor(self.rank, step, count)
            work = dist.broadcast(x, source, group=group, async_op=later)
            self.expect(work, [x], [self.tensor(source, step, count)])

    def messages(self, group: Any, members: list[int], step: int, count: int, later: bool) -> None:
        """A few messages between two ranks; on the CPU they are received in another order, by their tags."""
        source, target = self.draw.sample(members, 2)
        tags = list(range(3))
        self.draw.shuffle(tags)
        if self.rank == source:
            sent = [self.tensor(source, step + tag, count) for tag in range(3)]
            works = [dist.isend(x, target, group=group, tag=tag) for tag, x in enumerate(sent)]
            self.pending += [(work, [x], [x.clone()]) for work, x in zip(works, sent, strict=True)]
        if self.rank == target:
            for tag in range(3) if self.gpu else tags:
                out = torch.empty(count)
                self.expect(
                    dist.irecv(out, source, group=group, tag=tag), [out], [self.tensor(source, step + tag, count)]
                )

    def ring(self, group: Any, members: list[int], step: int, count: int, later: bool) -> None:
        if self.rank in members:
            at = members.index(self.rank)
            after, before = members[(at + 1) % len(members)], members[at - 1]
            x, out = self.tensor(self.rank, step, count), torch.empty(count)
            ops = [dist.P2POp(dist.isend, x, after, group), dist.P2POp(dist.irecv, out, before, group)]
            for work in dist.batch_isend_irecv(ops):
                self.pending.append((work, [], []))
            self.pending.append((work, [out], [self.tensor(before, step, count)]))

    def objects(self, group: Any, members: list[int], step: int, count: int, later: bool) -> None:
        text = "x" * self.draw.randrange(2000)
        if self.rank in members:
            everyone: list[Any] = [None] * len(members)
            dist.all_gather_object(everyone, (self.rank, step, text), group=group)
            assert everyone == [(rank, step, text) for rank in members]

    def anew(self, members: list[int]) -> None:
        """Make a group and let it go."""
        group = dist.new_group(members)
        if self.rank in members:
            x = torch.ones(3)
            dist.all_reduce(x, group=group)
            assert float(x[0]) == len(members)
            dist.destroy_process_group(group)


def mix(comm: Communicator, seed: int, gpu: bool = False) -> None:
    mixture = Mixture(dist.get_rank(), dist.get_world_size(), seed, gpu)
    for step in range(STEPS):
        mixture.step(step)
    mixture.look()
    dist.barrier()
    for group, members in mixture.groups[1:]:
        if mixture.rank in members:
            dist.destroy_process_group(group)
