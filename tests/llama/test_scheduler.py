"""The scheduler without a model: what a step may read was computed for the same tokens, and no page is lost."""

import random

import pytest

from examples.llama import Request, Scheduler

PAGE = 4
STEMS = [[(at * at + stem) % 3 for at in range(24)] for stem in range(3)]


class Pages:
    """Stands for the model and its cache: a slot remembers which tokens it was computed from."""

    def __init__(self, scheduler):
        self.scheduler, self.slots, self.computed = scheduler, {}, 0

    def step(self):
        step = self.scheduler.schedule()
        chosen = [self.run(request, count) for request, count in step]
        self.scheduler.advance(step, chosen)
        assert sum(count for _, count in step) <= self.scheduler.max_tokens
        assert len(step) <= self.scheduler.max_batch
        return bool(step)

    def run(self, request, count):
        assert len(set(request.pages)) == len(request.pages)
        for at in range(request.computed, request.computed + count):
            self.slots[self.slot(request, at)] = tuple(request.tokens[: at + 1])
            self.computed += 1
        seen = request.computed + count
        for at in range(seen):
            assert self.slots[self.slot(request, at)] == tuple(request.tokens[: at + 1])
        return next_token(request.tokens[:seen])

    @staticmethod
    def slot(request, at):
        return request.pages[at // PAGE], at % PAGE


def next_token(tokens):
    return sum((at + 1) * token for at, token in enumerate(tokens)) % 3


def expected(request):
    tokens = list(request.prompt)
    while len(tokens) - len(request.prompt) < request.max_new_tokens:
        tokens.append(next_token(tokens))
        if tokens[-1] in request.stop:
            break
    return tokens[len(request.prompt) :]


def made_up(chance):
    stem = STEMS[chance.randrange(len(STEMS))][: chance.randrange(25)]
    tail = [chance.randrange(3) for _ in range(chance.randrange(1, 6))]
    return Request(stem + tail, chance.randrange(1, 12), stop=(-1, 2) if chance.random() < 0.3 else ())


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_random_requests_read_what_was_computed_for_them_and_leave_no_page_behind(seed, reuse):
    chance = random.Random(seed)
    scheduler = Scheduler(chance.randrange(11, 40), PAGE, max_batch=chance.randrange(1, 6), max_tokens=8, reuse=reuse)
    model, requests = Pages(scheduler), []
    for _ in range(60):
        if chance.random() < 0.5:
            requests.append(made_up(chance))
            scheduler.add(requests[-1])
        model.step()
    while model.step():
        pass
    scheduler.check()
    assert scheduler.unused_pages == scheduler.pages
    assert all(request.done for request in requests)
    assert [request.new_tokens for request in requests] == [expected(request) for request in requests]
    assert any(request.reused for request in requests) == reuse


def test_a_prefix_that_came_at_the_same_time_is_computed_once():
    scheduler = Scheduler(64, PAGE)
    model = Pages(scheduler)
    requests = [Request([*range(20), last], 1) for last in (50, 51, 52)]
    scheduler.add(*requests)
    while model.step():
        pass
    assert [request.reused for request in requests] == [0, 20, 20]
    assert model.computed == 21 + 1 + 1


def test_a_request_waits_until_there_are_pages_and_those_behind_it_do_too():
    scheduler = Scheduler(8, PAGE, max_batch=4)
    model = Pages(scheduler)
    first, large, small = Request([0] * 16, 8), Request([1] * 25, 8), Request([2] * 2, 2)
    scheduler.add(first, large, small)
    model.step()
    assert (scheduler.running, list(scheduler.waiting)) == ([first], [large, small])
    while model.step():
        pass
    assert all(request.done for request in (first, large, small))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request([], 1), "prompt of 0 tokens"),
        (Request([1], 0), "max_new_tokens 0"),
        (Request([1] * 30, 4), "may need 9 pages .* there are 8"),
    ],
)
def test_a_request_that_can_never_run_is_refused_and_no_other_is_added_with_it(request_, message):
    scheduler = Scheduler(8, PAGE)
    with pytest.raises(ValueError, match=message):
        scheduler.add(Request([1], 1), request_)
    assert not scheduler.waiting
