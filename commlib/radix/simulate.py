"""A scheduler's loop around one RadixCache, on requests of a trace that it serves one at a time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from commlib.radix import RadixCache
from commlib.radix.trace import Request, Tokens

Row = dict[str, Any]


class Slots:
    """Free slots of a cache of `capacity` tokens, taken and given in whole pages; None: there is no end to them."""

    def __init__(self, capacity: int | None) -> None:
        self._stack: Tokens | None = None if capacity is None else np.arange(capacity, dtype=np.int32)
        self.free = 0 if capacity is None else capacity
        self._next = 0

    def take(self, count: int) -> Tokens:
        """Return so many slots, which must be free."""
        if self._stack is None:
            self._next += count
            return np.arange(self._next - count, self._next, dtype=np.int32)
        self.free -= count
        taken: Tokens = self._stack[self.free : self.free + count].copy()
        return taken

    def give(self, slots: Tokens) -> None:
        """Take back what is free again."""
        if self._stack is not None:
            self._stack[self.free : self.free + len(slots)] = slots
            self.free += len(slots)


class Simulation:
    """What one policy makes of a trace with so many slots."""

    def __init__(self, policy: str, capacity: int | None, page_size: int = 1, eviction: str = "leaf") -> None:
        self.policy, self.capacity, self.eviction = policy, capacity, eviction
        self._page = page_size
        self._room = None if capacity is None else capacity - capacity % page_size
        self._cache = RadixCache(page_size, policy, eviction=eviction)
        self._slots = Slots(self._room)
        self.requests = self.too_large = 0
        self.prompt_tokens = self.cached_tokens = 0
        self._spent_s = 0.0

    def serve(self, request: Request) -> None:
        """Serve one request: what does not fit at all is counted and left out."""
        tokens = np.concatenate([request.tokens, request.output]) if len(request.output) else request.tokens
        start = time.perf_counter()
        if self._room is not None and self._padded(len(tokens)) > self._room:
            self.too_large += 1
        else:
            self._serve(request, tokens)
        self._spent_s += time.perf_counter() - start

    def _serve(self, request: Request, tokens: Tokens) -> None:
        # The last token of a prompt is never taken from the cache: it must be computed to get the next one.
        found = self._cache.match(request.tokens[:-1], namespace=request.namespace)
        self._cache.lock(found.handle)
        fresh = self._padded(len(tokens)) - found.length
        if self._room is not None and fresh > self._slots.free:
            self._slots.give(self._cache.evict(fresh - self._slots.free).numpy())
        own = self._slots.take(fresh)
        slots = np.concatenate([found.slots.numpy(), own])[: len(tokens)]
        done = self._cache.insert(tokens, slots, namespace=request.namespace, priority=request.priority)
        self._slots.give(own[: done.existing - found.length])
        self._slots.give(own[len(tokens) - len(tokens) % self._page - found.length :])
        self._cache.unlock(found.handle)
        self.requests += 1
        self.prompt_tokens += len(request.tokens)
        self.cached_tokens += found.length

    def _padded(self, count: int) -> int:
        return -(-count // self._page) * self._page

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that came from the cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def row(self) -> Row:
        """Return the figures so far."""
        return {
            "policy": self.policy,
            "eviction": self.eviction,
            "capacity": self.capacity,
            "requests": self.requests,
            "too_large": self.too_large,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "hit_rate": round(self.hit_rate, 6),
            "evicted_tokens": self._cache.stats().evicted_tokens,
            "requests_per_s": round(self.requests / self._spent_s, 1) if self._spent_s else None,
        }
