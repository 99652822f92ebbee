"""Serve the requests of traces with a RadixCache of each policy and capacity, and compare their hit rates.

    python benchmarks/radix/make_traces.py scan -o scan.jsonl --requests 200
    python benchmarks/radix/simulate.py scan.jsonl --policy lru,lfu --capacity 50000,100000

A trace has a JSON object on each line, one for each request:

    {"tokens": [5, 6, [1000, 512]], "output": [7, 8], "namespace": "adapter", "priority": 1}

`tokens` is the prompt; a pair [first, count] stands for so many consecutive numbers. The other keys are optional:
`output` is what was generated, as tokens, or only their number if no later prompt contains them; `namespace` is text, a
number or a list of those. Requests are served one at a time.

The limit is the hit rate of a cache without end. `too large` counts requests that do not fit into the capacity.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from commlib.radix import POLICIES, Namespace, RadixCache

Tokens: TypeAlias = NDArray[np.int32]
Row: TypeAlias = dict[str, Any]
KEYS = ("tokens", "output", "namespace", "priority")
LOW, HIGH = -(2**31), 2**31 - 1
MAX_TOKENS = 1 << 24  # of one request


@dataclass(frozen=True)
class Request:
    """One request of a trace."""

    tokens: Tokens
    output: Tokens
    namespace: Namespace = None
    priority: int = 0


def read(path: Path) -> Iterator[Request]:
    """Yield the requests of a trace; a ValueError names the line that is not a request."""
    counted = 0  # tokens of outputs that are only counted

    def unique(count: int) -> Tokens:
        nonlocal counted
        counted += count
        return (LOW + np.arange(counted - count, counted) % -LOW).astype(np.int32)

    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield request_of(json.loads(line), unique)
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: {error}") from None


def request_of(raw: Any, unique: Callable[[int], Tokens]) -> Request:
    """Return the request that a line describes; unique() returns tokens that no other request has."""
    if not isinstance(raw, dict):
        raise ValueError(f"a request is an object with tokens, not {raw!r}")
    if unknown := [key for key in raw if key not in KEYS]:
        raise ValueError(f"a request has no {unknown[0]!r}; there are {', '.join(KEYS)}")
    prompt, output = tokens_of(raw, "tokens"), raw.get("output", 0)
    if not len(prompt):
        raise ValueError("tokens is empty; a prompt has 1 or more")
    if isinstance(output, int) and not 0 <= output <= MAX_TOKENS:
        raise ValueError(f"output is {output}, but a request has from 0 to {MAX_TOKENS} tokens")
    generated = unique(output) if isinstance(output, int) else tokens_of(raw, "output")
    namespace = raw.get("namespace")
    return Request(
        prompt, generated, tuple(namespace) if isinstance(namespace, list) else namespace, raw.get("priority", 0)
    )


def tokens_of(raw: Row, key: str) -> Tokens:
    """Return the tokens under a key of a line: numbers, and pairs [first, count]."""
    if not isinstance(raw.get(key), list):
        raise ValueError(f"{key} is {raw.get(key)!r}, but must be a list of numbers")
    pieces, total = [np.empty(0, np.int64)], 0
    for at, item in enumerate(raw[key]):
        first, count = item if isinstance(item, list) and len(item) == 2 else (item, 1)
        if type(first) is not int or type(count) is not int:
            raise ValueError(f"{key}[{at}] is {item!r}, but must be a number or a pair [first, count]")
        total += count
        if count < 0 or total > MAX_TOKENS:
            raise ValueError(f"{key}[{at}] makes {total} tokens, but a request has from 0 to {MAX_TOKENS}")
        if not LOW <= first <= first + max(count, 1) - 1 <= HIGH:
            raise ValueError(f"{key}[{at}] is {item}, but tokens are from {LOW} to {HIGH}")
        pieces.append(np.arange(first, first + count))
    return np.concatenate(pieces).astype(np.int32)


class Slots:
    """Free slots of a cache of `capacity` tokens, in whole pages; None: there is no end to them."""

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

    def put(self, slots: Tokens) -> None:
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
        """Serve one request; one that does not fit at all is only counted."""
        tokens = np.concatenate([request.tokens, request.output]) if len(request.output) else request.tokens
        start = time.perf_counter()
        if self._room is not None and self._padded(len(tokens)) > self._room:
            self.too_large += 1
        else:
            self._serve(request, tokens)
        self._spent_s += time.perf_counter() - start

    def _serve(self, request: Request, tokens: Tokens) -> None:
        # The last token of a prompt is never taken from the cache: it must be computed to get the next one.
        match = self._cache.match(request.tokens[:-1], namespace=request.namespace)
        self._cache.lock(match.handle)
        fresh = self._padded(len(tokens)) - match.length
        if self._room is not None and fresh > self._slots.free:
            self._slots.put(self._cache.evict(fresh - self._slots.free).numpy())
        new = self._slots.take(fresh)
        slots = np.concatenate([match.slots.numpy(), new])[: len(tokens)]
        done = self._cache.insert(tokens, slots, namespace=request.namespace, priority=request.priority)
        self._slots.put(new[: done.existing - match.length])
        self._slots.put(new[len(tokens) - len(tokens) % self._page - match.length :])
        self._cache.unlock(match.handle)
        self.requests += 1
        self.prompt_tokens += len(request.tokens)
        self.cached_tokens += match.length

    def _padded(self, count: int) -> int:
        return -(-count // self._page) * self._page

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
            "hit_rate": round(self.cached_tokens / max(self.prompt_tokens, 1), 6),
            "evicted_tokens": self._cache.stats().evicted_tokens,
            "requests_per_s": round(self.requests / self._spent_s, 1) if self._spent_s else None,
        }


def simulate(path: Path, simulations: Sequence[Simulation]) -> bool:
    """Serve a trace with all caches until its end or Ctrl-C; say whether it was the end."""
    try:
        for request in read(path):  # wherever this stops, the caches can be compared
            for simulation in simulations:
                simulation.serve(request)
    except KeyboardInterrupt:
        return False
    return True


def table(path: Path, unlimited: Row, rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a trace."""
    limit = unlimited["hit_rate"]
    yield (
        f"# {path.name}: {unlimited['requests']:,} requests, {unlimited['prompt_tokens']:,} prompt tokens, "
        f"limit {100 * limit:.1f} %"
    )
    yield "#   capacity policy    eviction  hit rate  of limit      evicted  too large  requests/s"
    for row in rows:
        of_limit = row["hit_rate"] / limit if limit else 1.0
        yield (
            f"{row['capacity']:12,} {row['policy']:9} {row['eviction']:8} {100 * row['hit_rate']:7.1f} % "
            f"{100 * of_limit:7.1f} % {row['evicted_tokens']:12,} {row['too_large']:10,} "
            f"{row['requests_per_s'] or 0:11,.0f}"
        )


def arguments(args: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--policy", default=",".join(POLICIES), help="a list, without it all")
    parser.add_argument("--capacity", default="100000,300000,1000000", help="a list, in tokens")
    parser.add_argument("--page-size", type=int, default=1, help="tokens of a page")
    parser.add_argument("--eviction", default="leaf", help="leaf, tail, or leaf,tail")
    parser.add_argument("-o", "--output", type=Path, help="write the figures as JSON")
    return parser.parse_args(args)


def main(args: Sequence[str] | None = None) -> int:
    """Simulate every trace, print a table for each, and return the exit code."""
    options = arguments(args)
    capacities = sorted(map(int, options.capacity.split(",")))
    every = list(product(capacities, options.policy.split(","), options.eviction.split(",")))
    traces: list[Row] = []
    complete = True
    for path in options.traces:
        unlimited = Simulation("lru", None, options.page_size)
        limited = [Simulation(policy, capacity, options.page_size, eviction) for capacity, policy, eviction in every]
        complete = simulate(path, [unlimited, *limited])
        rows = [simulation.row() for simulation in limited]
        print(*table(path, unlimited.row(), rows), sep="\n")
        traces.append({"trace": path.name, "limit": unlimited.row(), "rows": rows})
        if not complete:
            print("# interrupted: not complete")
            break
    if options.output is not None:
        options.output.write_text(json.dumps({"complete": complete, "traces": traces}, indent=1) + "\n")
    return 0 if complete else 130


if __name__ == "__main__":
    raise SystemExit(main())
