"""On random traces the native tree agrees with the model in lengths, slots, order of eviction and both counters."""

import random

import pytest

from commlib.radix import POLICIES
from tests.radix.pair import Pair

TRACES, CALLS = 120, 60  # of each policy, each with a size of pages and a form of eviction
NAMESPACES = (None, "", "adapter", 7, ("adapter", 7))


class Trace:
    """Random calls with prompts that share pages, end within pages and differ within pages."""

    def __init__(self, seed, policy):
        self.random = random.Random(seed)
        page_size, eviction = self.random.choice((1, 2, 4, 16)), self.random.choice(("leaf", "tail"))
        capacity = self.random.choice((None, None, 12 * page_size + self.random.randrange(page_size)))
        self.page = page_size
        self.pair = Pair(policy=policy, page_size=page_size, capacity=capacity, eviction=eviction)

    def prompt(self):
        tokens = []
        for _ in range(self.random.randrange(9)):
            tokens += [self.random.randrange(2)] * (self.page - 1) + [self.random.randrange(3)]
        return tokens + [1] * self.random.randrange(self.page)

    def namespace(self):
        return self.random.choice(NAMESPACES) if self.random.random() < 0.3 else None

    def step(self):
        pair, draw = self.pair, self.random.random()
        if draw < 0.35:
            prompt, counted = self.prompt(), self.random.choice((0, 0, self.random.randrange(9 * self.page)))
            pair.insert(prompt, self.namespace(), self.random.randrange(3), counted)
        elif draw < 0.6:
            pair.match(self.prompt(), self.namespace(), touch=self.random.random() < 0.8)
        elif draw < 0.75 and pair.handles:
            pair.lock(self.random.randrange(max(0, len(pair.handles) - 6), len(pair.handles)))
        elif draw < 0.85 and pair.locked:
            pair.unlock(pair.locked.pop(self.random.randrange(len(pair.locked))))
        elif draw < 0.96:
            pair.evict(self.random.randrange(3 * self.page), at_most=self.random.random() < 0.3)
        elif draw < 0.99:
            pair.peek([self.prompt(), self.prompt()], [self.namespace(), self.namespace()])
        elif draw < 0.992:
            pair.reset()
        elif pair.handles:
            pair.unlock(self.random.randrange(len(pair.handles)))  # whether it is locked or not
            pair.locked = [which for which in pair.locked if pair.model.alive(pair.handles[which][1])]
        pair.same_sizes()


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (1000, 2000))])
@pytest.mark.parametrize("policy", POLICIES)
def test_it_agrees_with_the_model(policy, first):
    for seed in range(first, first + TRACES):
        trace = Trace(f"{policy} {seed}", policy)
        for _ in range(CALLS):
            trace.step()
        trace.pair.same_contents()
        trace.pair.drain()
