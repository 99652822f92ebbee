"""Which tokens run next, and in which pages: admit, extend, decode, finish. It decides the same on every rank."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import SupportsIndex

import torch

from commlib.counts import counted
from commlib.kernels import prefix_match
from commlib.radix import RadixCache


@dataclass(frozen=True)
class Draw:
    """How a request's tokens are chosen: the best, or drawn at a temperature, from the `top_k` best if that is set."""

    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        _whole("top_k", self.top_k)
        _whole("seed", self.seed)
        if not self.temperature >= 0 or self.top_k < 0:
            raise ValueError(f"temperature is {self.temperature} and top_k is {self.top_k}, but both must be 0 or more")


def _whole(name: str, number: SupportsIndex) -> int:
    """Return a number as an int, or say that it is none, before the request that has it is in the queue."""
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{name} is {number!r}, but must be an int") from None


GREEDY = Draw()


@dataclass(eq=False)
class Request:
    """A prompt and what becomes of it."""

    prompt: list[int]
    max_new_tokens: int
    draw: Draw = GREEDY
    stop: tuple[int, ...] = ()
    reused: int = 0  # tokens of the prompt that were in the cache
    done: bool = False
    tokens: list[int] = field(init=False)  # the prompt and what was generated
    computed: int = 0  # tokens whose K and V are in the cache
    pages: list[int] = field(default_factory=list)
    shared: int = 0  # leading pages that belong to the radix cache
    handle: int = 0  # locks them

    def __post_init__(self) -> None:
        _whole("max_new_tokens", self.max_new_tokens)
        self.prompt = [_whole("a token of the prompt", token) for token in self.prompt]
        self.tokens = list(self.prompt)

    @property
    def new_tokens(self) -> list[int]:
        """What was generated; a token that stops is part of it."""
        return self.tokens[len(self.prompt) :]


class Scheduler:
    """A queue of requests over so many pages; a request gets all pages it may need when it is admitted.

    `max_tokens` is the number of new tokens in a step: longer prompts are computed in several steps. Nothing here
    depends on a clock, so ranks that add the same requests and get the same tokens stay equal.
    """

    def __init__(
        self, pages: int, page_size: int, *, max_batch: int = 16, max_tokens: int = 512, reuse: bool = True
    ) -> None:
        if not 1 <= max_batch <= max_tokens:
            raise ValueError(f"max_batch is {max_batch}, but must be from 1 to max_tokens ({max_tokens})")
        self.pages, self.page_size, self.reuse = pages, page_size, reuse
        self.max_batch, self.max_tokens = max_batch, max_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._free = list(range(pages))
        self._radix = RadixCache(page_size)

    @property
    def unused_pages(self) -> int:
        """Pages that no request needs: free ones, and those of prefixes that nobody reads."""
        return len(self._free) + self._radix.evictable_size // self.page_size

    def add(self, *requests: Request) -> None:
        """Let requests wait for their turn; if one can never run, none is added."""
        for request in requests:
            tokens = counted(len(request.prompt), "token")
            if not request.prompt or request.max_new_tokens < 1:
                counts = f"{tokens} and max_new_tokens {request.max_new_tokens}"
                raise ValueError(f"the request has a prompt of {counts}, but both must be 1 or more")
            if (needed := self._needed(request)) > self.pages:
                raise ValueError(
                    f"the request may need {counted(needed, 'page')} ({tokens} and {request.max_new_tokens} "
                    f"new ones), but there are {self.pages}; raise pages= or lower max_new_tokens"
                )
        self.waiting += requests

    def schedule(self) -> list[tuple[Request, int]]:
        """Admit what fits; return who runs in the next step, and how many tokens of each. Empty: all is done."""
        while self.waiting and len(self.running) < self.max_batch and self._admit(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        step, room = [], self.max_tokens
        for request in self.running:  # the oldest first: those that decode are before those that begin
            if count := min(len(request.tokens) - request.computed, room):
                step.append((request, count))
                room -= count
        return step

    def advance(self, step: Sequence[tuple[Request, int]], chosen: Sequence[int]) -> None:
        """Take what a step computed: the token that was chosen after the last one of each request."""
        for (request, count), token in zip(step, chosen, strict=True):
            in_prompt = request.computed < len(request.prompt)
            request.computed += count
            if request.computed == len(request.tokens):
                request.tokens.append(token)
                request.done = len(request.new_tokens) == request.max_new_tokens or token in request.stop
            if self.reuse and (in_prompt or request.done):
                self._share(request)
            if request.done:
                self._finish(request)

    def check(self) -> None:
        """Raise RuntimeError unless every page is in one place; for tests and debugging."""
        self._radix.check()
        private = [page for request in self.running for page in request.pages[request.shared :]]
        held = sorted([*self._free, *private, *self._pages_of(self._radix.slots().sort().values)])
        if held != list(range(self.pages)):
            raise RuntimeError(f"of {self.pages} pages, those free, cached or in use are {held}")

    def _needed(self, request: Request) -> int:
        """Return how many pages it may need; the last token that it generates is never stored."""
        return -(-(len(request.prompt) + request.max_new_tokens - 1) // self.page_size)

    def _admit(self, request: Request) -> bool:
        # The last token of a prompt is never taken from the cache: it must be computed to get the next one.
        prefix = request.prompt[:-1] if self.reuse else []
        match = self._radix.match(prefix)
        if any(prefix_match(prefix, other.prompt, self.page_size) > match.length for other in self._prefilling()):
            return False  # what it shares with that one is computed now, and in the cache at the next step
        self._radix.lock(match.handle)
        short = (self._needed(request) - match.length // self.page_size) - len(self._free)
        if short * self.page_size > self._radix.evictable_size:
            self._radix.unlock(match.handle)
            return False
        if short > 0:
            self._free += self._pages_of(self._radix.evict(short * self.page_size))
        request.pages = self._pages_of(match.slots)
        request.shared, request.handle = len(request.pages), match.handle
        request.computed = request.reused = match.length
        missing = self._needed(request) - request.shared
        request.pages += self._free[:missing]
        del self._free[:missing]
        return True

    def _prefilling(self) -> list[Request]:
        return [request for request in self.running if request.computed < len(request.prompt)]

    def _share(self, request: Request) -> None:
        """Insert the whole computed pages into the radix cache; use its pages where another request was first."""
        whole = request.computed // self.page_size
        if whole <= request.shared:
            return
        slots = torch.tensor(request.pages[:whole])[:, None] * self.page_size + torch.arange(self.page_size)
        count = whole * self.page_size
        counted = request.shared * self.page_size
        done = self._radix.insert_and_match(request.tokens[:count], slots.flatten(), counted=counted)
        cached = self._pages_of(done.slots)
        self._free += [page for page, other in zip(request.pages, cached, strict=False) if page != other]
        request.pages[:whole] = cached
        self._radix.lock(done.handle)
        self._radix.unlock(request.handle)
        request.shared, request.handle = whole, done.handle

    def _finish(self, request: Request) -> None:
        self.running.remove(request)
        self._radix.unlock(request.handle)
        self._free += request.pages[request.shared :]

    def _pages_of(self, slots: torch.Tensor) -> list[int]:
        """Return the page of each `page_size` slots."""
        pages: list[int] = (slots[:: self.page_size] // self.page_size).tolist()
        return pages
