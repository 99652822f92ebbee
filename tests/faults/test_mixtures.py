"""Mixtures that nobody planned: calls now and later, two communicators, messages, objects and splits, from a seed."""

import time

import pytest
import torch

from tests.torch_backend.mixtures import Drawn

SIZES = (0, 1, 7, 8, 9, 1000, 33_333, 300_001)
STEPS = 60


class Mixture(Drawn):
    """Calls of two communicators."""

    def __init__(self, comm, seed):
        super().__init__(comm.rank, comm.size, seed)
        self.comms = [comm, comm.split(0)]

    def step(self, step):
        """Make one call of some kind; now and then one rank comes late to it."""
        comm, count, later = self.draw.choice(self.comms), self.draw.choice(SIZES), self.draw.random() < 0.4
        if self.draw.random() < 0.1 and self.draw.randrange(self.size) == self.rank:
            time.sleep(0.005)
        kinds = [self.all_reduce, self.all_reduce, self.all_gather, self.all_to_all, self.broadcast]
        kinds += [self.message, self.ring, self.objects, self.split]
        self.draw.choice(kinds)(comm, step, count, later)
        if self.draw.random() < 0.1:
            self.look()

    def all_reduce(self, comm, step, count, later):
        x = self.tensor(self.rank, step, count)
        expected = sum(self.tensor(rank, step, count) for rank in range(self.size))
        work = comm.all_reduce(x, async_op=later)
        self.expect(work if later else None, [x], [expected])

    def all_gather(self, comm, step, count, later):
        out = torch.empty(count * self.size)
        expected = torch.cat([self.tensor(rank, step, count) for rank in range(self.size)])
        work = comm.all_gather_into_tensor(out, self.tensor(self.rank, step, count), async_op=later)
        self.expect(work if later else None, [out], [expected])

    def all_to_all(self, comm, step, count, later):
        ranks = range(self.size)
        splits = [[self.draw.choice((0, 1, 7, count)) for _ in ranks] for _ in ranks]  # of each rank, to each rank
        x = torch.cat([self.tensor(self.rank + rank, step, splits[self.rank][rank]) for rank in ranks])
        received = [splits[rank][self.rank] for rank in ranks]
        out = torch.empty(sum(received))
        expected = torch.cat([self.tensor(rank + self.rank, step, splits[rank][self.rank]) for rank in ranks])
        work = comm.all_to_all_single(out, x, received, splits[self.rank], async_op=later)
        self.expect(work if later else None, [out], [expected])

    def ring(self, comm, step, count, later):
        """Send to the next rank of a ring or a larger one, and receive from the one before, at once."""
        stride = 1 + self.draw.randrange(self.size - 1)
        after, before = (self.rank + stride) % self.size, (self.rank - stride) % self.size
        out = comm.send_recv(self.tensor(self.rank, step, count), after, torch.empty(count), before)
        self.expect(None, [out], [self.tensor(before, step, count)])

    def broadcast(self, comm, step, count, later):
        source, x = self.draw.randrange(self.size), self.tensor(self.rank, step, count)
        work = comm.broadcast(x, source, async_op=later)
        self.expect(work if later else None, [x], [self.tensor(source, step, count)])

    def message(self, comm, step, count, later):
        source = self.draw.randrange(self.size)
        target = (source + 1 + self.draw.randrange(self.size - 1)) % self.size
        if self.rank == source:
            x = self.tensor(source, step, count)
            work = comm.send(x, target, async_op=later)
            self.expect(work if later else None, [x], [x.clone()])
        if self.rank == target:
            out = torch.empty(count)
            self.expect(comm.recv(out, source, async_op=True), [out], [self.tensor(source, step, count)])

    def objects(self, comm, step, count, later):
        text = "x" * self.draw.randrange(2000)
        assert comm.all_gather_object((self.rank, step, text)) == [(rank, step, text) for rank in range(self.size)]

    def split(self, comm, step, count, later):
        part = comm.split(self.rank % 2 if later else 0, -self.rank)
        assert float(part.all_reduce(torch.ones(1))) == part.size
        part.close()


def mix(comm, seed):
    mixture = Mixture(comm, seed)
    for step in range(STEPS):
        mixture.step(step)
    mixture.look()
    mixture.comms[1].close()
    return True


@pytest.mark.parametrize("seed", range(2))
def test_a_mixture_of_calls_gives_every_value(shm_ranks, seed):
    assert all(shm_ranks.run(mix, seed, world=2 + seed % 2))


@pytest.mark.slow
def test_a_mixture_of_calls_gives_every_value_on_torch(torch_ranks):
    assert all(torch_ranks.run(mix, 4, world=2))
