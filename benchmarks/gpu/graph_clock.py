"""Graph mode: a block is one replay of a graph of many calls, between two events on the device.

prepare | agree | first calls, capture | agree | check | interleaved blocks | check | slowest rank
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from candidate import BUFFERS, Entry, agree, checked, combine
from case import Truth, poison

from commlib.communicator import Communicator
from commlib.timing.graph import Starter, capture

K, M = 1 << 10, 1 << 20
# Calls of one graph by size: enough that its launch, some µs, does not count. In place each one multiplies
# the values by the ranks: 33 on one buffer stay finite up to eight ranks.
CALLS = ((256 * K, 99), (4 * M, 48), (32 * M, 18), (64 * M, 9))
MOST_BYTES_CALLS = 6


@dataclass(frozen=True)
class Budget:
    """How long to measure one size: blocks per candidate from `least` to `most`, as `seconds` allow."""

    seconds: float
    least: int = 15
    most: int = 41
    seed: int = 0


def calls_of(num_bytes: int) -> int:
    """Return how many calls a graph holds; a multiple of the buffers."""
    return next((calls for limit, calls in CALLS if num_bytes <= limit), MOST_BYTES_CALLS)


def measure(comm: Communicator, entries: Sequence[Entry], starter: Starter, budget: Budget, restore: Any) -> None:
    """Measure the candidates of one case; results are in the entries. `restore()` puts the plan back."""
    case = entries[0].case
    truth = Truth(case)
    for entry in entries:
        entry.calls = calls_of(case.num_bytes)
        entry.attempt(Entry.allocate)
    ready = agree(comm, entries)
    for entry in ready:
        entry.attempt(lambda one: _capture(one, truth))
    restore()
    ready = agree(comm, entries)
    torch.cuda.synchronize()
    comm.barrier()
    try:
        _check(comm, ready, truth)
        _run_blocks(comm, ready, starter, budget, truth)
        _check(comm, ready, truth)
        combine(comm, ready)
    finally:
        torch.cuda.synchronize()
        for entry in entries:
            if entry.graph is not None:
                entry.graph.reset()
                entry.graph = None
        comm.barrier()


def _capture(entry: Entry, truth: Truth) -> None:
    """Make each call once (code is built and loaded, NCCL connects), then capture."""
    entry.candidate.enter()
    for (x, _), run in zip(entry.pairs, entry.runs(), strict=True):
        x.copy_(truth.input)
        checked(run)
    torch.cuda.synchronize()
    entry.graph = capture([partial(_calls, entry)])


def _calls(entry: Entry) -> None:
    """Make a block's calls. What they are is asked here: peers bind the stream that is current then."""
    runs = entry.runs()
    for at in range(entry.calls):
        checked(runs[at % len(runs)])


def _refill(entry: Entry, truth: Truth) -> None:
    for x, _ in entry.pairs:
        x.copy_(truth.input)


def _check(comm: Communicator, entries: Sequence[Entry], truth: Truth) -> None:
    """Replay each graph once on fresh inputs and count the wrong elements of every buffer."""
    for entry in entries:
        for _, out in entry.pairs:
            poison(out)
        _refill(entry, truth)
        torch.cuda.synchronize()
        comm.barrier()
        entry.graph.replay()
        torch.cuda.synchronize()
        in_place = entry.calls // BUFFERS if entry.candidate.in_place else 1
        entry.wrong += sum(truth.wrong(out, in_place) for _, out in entry.pairs)


def _block(comm: Communicator, entry: Entry, starter: Starter, truth: Truth) -> float:
    """Run one block on all ranks at once and return this rank's seconds per call."""
    comm.barrier()
    _refill(entry, truth)  # candidates share tensors, and calls in place leave them large
    return starter.time(entry.graph) / entry.calls


def _run_blocks(comm: Communicator, entries: Sequence[Entry], starter: Starter, budget: Budget, truth: Truth) -> None:
    if not entries:
        return
    start = time.perf_counter()
    for entry in entries:  # the graph is on the device by now, and it is known how long the host takes to launch it
        _block(comm, entry, starter, truth)
    round_s = max(comm.all_gather_object(time.perf_counter() - start))
    rounds = max(budget.least, min(budget.most, int(budget.seconds / round_s)))
    order = random.Random(f"{budget.seed} {entries[0].case.op} {entries[0].case.num_bytes}")
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            turn = list(entries)
            order.shuffle(turn)
            for entry in turn:
                entry.times_s.append(_block(comm, entry, starter, truth))
    finally:
        gc.enable()
