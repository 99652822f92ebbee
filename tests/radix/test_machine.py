"""Whatever calls hypothesis thinks of, the native tree and the model do the same."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from commlib.radix import POLICIES
from tests.radix.pair import Pair

PAGES = st.lists(st.sampled_from((0, 1, 2)), max_size=7)
SPACES = st.sampled_from((None, "", "a", ("a", 1)))


class Machine(RuleBasedStateMachine):
    @initialize(
        page=st.sampled_from((1, 2, 4, 16)),
        policy=st.sampled_from(POLICIES),
        eviction=st.sampled_from(("leaf", "tail")),
        capacity=st.none() | st.integers(0, 100),
    )
    def start(self, page, policy, eviction, capacity):
        self.page = page
        self.pair = Pair(page_size=page, policy=policy, eviction=eviction, capacity=capacity)

    def tokens(self, pages, tail):
        return [token for page in pages for token in (page,) * self.page] + [0] * (tail % self.page)

    @rule(pages=PAGES, tail=st.integers(0, 15), namespace=SPACES, priority=st.integers(-2, 2))
    def insert(self, pages, tail, namespace, priority):
        self.pair.insert(self.tokens(pages, tail), namespace, priority)

    @rule(pages=PAGES, tail=st.integers(0, 15), namespace=SPACES, touch=st.booleans())
    def match(self, pages, tail, namespace, touch):
        self.pair.match(self.tokens(pages, tail), namespace, touch)

    @rule(prompts=st.lists(st.tuples(PAGES, SPACES), max_size=3))
    def match_many(self, prompts):
        self.pair.peek([self.tokens(pages, 0) for pages, _ in prompts], [space for _, space in prompts])

    @precondition(lambda self: self.pair.handles)
    @rule(data=st.data(), lock=st.booleans())
    def lock_or_unlock(self, data, lock):
        which = data.draw(st.integers(0, len(self.pair.handles) - 1))
        (self.pair.lock if lock else self.pair.unlock)(which)

    @rule(tokens=st.integers(0, 40))
    def evict(self, tokens):
        self.pair.evict(tokens)

    @rule()
    def reset(self):
        self.pair.reset()

    @invariant()
    def sizes(self):
        if hasattr(self, "pair"):
            self.pair.same_sizes()
            self.pair.cache.check()

    def teardown(self):
        if hasattr(self, "pair"):
            self.pair.same_contents()


Machine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
test_the_machine = pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")(
    Machine.TestCase
)
