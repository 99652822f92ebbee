"""Blocks of calls: calibrate | capture | interleave, on the ranks of a world or on one device alone.

A block is a row of calls by the host; in graph mode it is the replay of a graph of them.
"""

from __future__ import annotations

import gc
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from commlib.errors import CommError
from commlib.tools.timing import graph
from commlib.tools.timing.candidate import Run

if TYPE_CHECKING:
    from commlib.communicator import Communicator
    from commlib.tools.timing.graph import Starter

MAX_ITERATIONS = 20_000
# Long against a barrier's jitter; where ranks share cores, against a time slice; on GPUs, against the wait at its end.
BLOCK_S, LONG_BLOCK_S = 200e-6, 2e-3
SHORT_S = 0.01  # calls up to here are led in, and calibrated three times: a hiccup is of their size
# Before a block, outside of the clock: others, and switching plans, emptied the caches. After one call of 256 KiB on
# shm the next ones take 1.3 times as long as in a row, after three 1.1, after sixteen no longer.
LEAD_IN_S, MAX_LEAD_IN = 0.8e-3, 16


@dataclass(frozen=True)
class Protocol:
    """How long and how carefully to measure; the defaults suit a table, a tuner takes more blocks."""

    block_s: float | None = None  # None: 200 µs, and 2 ms on GPUs or if there are more ranks than cores
    blocks: tuple[int, int] = (5, 25)  # per candidate, as the budget allows
    budget_s: float = 0.5  # for all candidates of one call together
    iterations: int | None = None  # of one block; None: as many as fill block_s
    warmup: int = 3
    slow_s: float = 1.0  # a call that takes longer is checked and measured once
    buffers: int = 3  # in rotation, so that no call finds its own last result in the cache
    check: bool = True
    graph: bool = False
    lead_in: Run | None = None  # of graphs: what the device does before each replay, outside of the clock
    race: float = 0.0  # leave out, after the least blocks, whoever takes so many times the best's; 0: nobody


DEFAULT = Protocol()


@dataclass
class Measurement:
    """What one candidate took: for each block, seconds per iteration on the slowest rank."""

    label: str
    in_place: bool
    iterations: int = 0
    times_s: list[float] = field(default_factory=list)
    issue_s: list[float] = field(default_factory=list)  # the host's part of each block of calls, on this rank
    wrong: int | None = None
    skipped: str = ""  # why it was not measured
    raced_out: bool = False  # too slow to be measured to the end

    @property
    def median_s(self) -> float:
        return statistics.median(self.times_s)

    def percentile_s(self, percent: float) -> float:
        return sorted(self.times_s)[round(percent / 100 * (len(self.times_s) - 1))]


class SingleDevice:
    """One device without ranks: there is nobody to wait for."""

    size = 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def barrier(self) -> None:
        """Wait for nobody."""

    def all_gather_object(self, obj: Any) -> list[Any]:
        return [obj]


Group: TypeAlias = "Communicator | SingleDevice"  # what keeps ranks together between blocks


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep the garbage collector out of what is timed."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def block_seconds(comm: Group) -> float:
    return LONG_BLOCK_S if comm.device.type == "cuda" or comm.size > (os.cpu_count() or 1) else BLOCK_S


@dataclass
class Entry:
    """A candidate with its buffers, and what it took so far on this rank."""

    result: Measurement
    enter: Callable[[], object] = lambda: None
    checked: bool = True
    runs: list[Run] = field(default_factory=list)  # one for each pair of buffers
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    issued_s: float = 0.0  # until the host had made the calls of its last block
    call_s: float = 0.0  # of a first call and its check, then of one in a row
    graph: Any = None
    starter: Starter | None = None
    first: int = 0  # of the runs that come next

    def lead_in(self, iterations: int) -> int:
        """Return how many calls a block of so many begins with, outside of the clock."""
        enough = math.ceil(LEAD_IN_S / self.call_s) if self.call_s else 1
        return max(1, min(enough, 4 * iterations, MAX_LEAD_IN))

    def following(self, iterations: int) -> list[Run]:
        """Return the next runs in rotation, as one list: the loop over it costs next to nothing."""
        n = len(self.runs)
        turn = self.runs[self.first :] + self.runs[: self.first]
        self.first = (self.first + iterations) % n
        return (turn * (iterations // n + 1))[:iterations]


def agree(comm: Group, entries: Sequence[Entry]) -> None:
    """Skip on all ranks what one rank cannot run: it would be waited for. And take the slowest rank's time."""
    everyone = comm.all_gather_object([(entry.result.skipped, entry.call_s) for entry in entries])
    for entry, of_ranks in zip(entries, zip(*everyone, strict=True), strict=True):
        entry.result.skipped = next((reason for reason, _ in of_ranks if reason), "")
        entry.call_s = max(call_s for _, call_s in of_ranks)


def block(comm: Group, entry: Entry, iterations: int) -> float:
    """Run one block on all ranks at once and return this rank's seconds."""
    if entry.starter is not None:
        comm.barrier()
        return entry.starter.time(entry.graph)
    entry.enter()
    comm.barrier()  # takes up the ranks' distance: who slept in it wakes late
    if entry.call_s < SHORT_S:
        for run in entry.following(entry.lead_in(iterations)):
            run()
    runs = entry.following(iterations)
    comm.barrier()
    comm.barrier()
    if comm.device.type == "cuda":
        torch.cuda.synchronize(comm.device)  # there a barrier is only enqueued: now the hosts are in line, too
    start = time.perf_counter()
    for run in runs:
        run()
    entry.issued_s = time.perf_counter() - start
    if comm.device.type == "cuda":
        torch.cuda.synchronize(comm.device)  # a call returns when it is enqueued; the figure is of the data's arrival
    return time.perf_counter() - start


def take_turns(comm: Group, entries: list[Entry], protocol: Protocol, begun: tuple[float, str]) -> None:
    """Calibrate, then run blocks of all entries in turns: calls by the host, or replays of graphs of them."""
    protocol = replace(protocol, block_s=protocol.block_s or block_seconds(comm))
    for entry in entries:
        _calibrate(comm, entry, protocol)
    (_run_graphs if protocol.graph else _run_blocks)(comm, entries, protocol, begun)


def _calibrate(comm: Group, entry: Entry, protocol: Protocol) -> None:
    assert protocol.block_s is not None
    block(comm, entry, protocol.warmup)
    count = protocol.iterations or 1
    while True:
        tries = 3 if entry.call_s < SHORT_S else 1  # one disturbed block would make all that follow too short
        took = min(slowest(comm, block(comm, entry, count)) for _ in range(tries))
        if protocol.iterations or took >= protocol.block_s / 2 or count >= MAX_ITERATIONS:
            break
        count = min(10 * count, MAX_ITERATIONS)
    entry.call_s = took / count
    wanted = math.ceil(protocol.block_s / entry.call_s)
    entry.result.iterations = protocol.iterations or max(1, min(wanted, MAX_ITERATIONS))


def _run_graphs(comm: Group, entries: list[Entry], protocol: Protocol, begun: tuple[float, str]) -> None:
    """Capture what was calibrated, run the blocks on the replays, and give the graphs back."""
    starter = graph.Starter(comm, protocol.lead_in)
    for entry in entries:
        calls = min(entry.result.iterations, graph.MAX_CALLS)
        entry.result.iterations = protocol.iterations or -(-calls // protocol.buffers) * protocol.buffers
        entry.enter()
        try:
            entry.graph = graph.captured(entry.following(entry.result.iterations))
        except CommError as error:
            entry.result.skipped = str(error)
    agree(comm, entries)
    ready = [entry for entry in entries if not entry.result.skipped]
    try:
        for entry in ready:
            entry.starter = starter
            entry.call_s = slowest(comm, block(comm, entry, 0)) / entry.result.iterations  # and to the device with it
        _run_blocks(comm, ready, protocol, begun)
    finally:
        starter.close()
        for entry in entries:
            if entry.graph is not None:
                entry.graph.reset()
            entry.graph = entry.starter = None
    comm.barrier()  # not after an error or Ctrl-C: nobody may come


def _run_blocks(comm: Group, entries: list[Entry], protocol: Protocol, begun: tuple[float, str]) -> None:
    """Run blocks as the time since `begun` allows; with a race, first a few of each, then of those that are left."""
    started, name = begun
    min_blocks, max_blocks = protocol.blocks
    turns = 0  # that everyone has had
    if protocol.race > 0 and len(entries) > 1 and max_blocks > min_blocks:
        _interleave(comm, entries, [min_blocks] * len(entries), random.Random(name))
        entries, turns = _race(comm, entries, protocol.race), min_blocks
        min_blocks *= 3  # enough to choose on some and judge on others
    if not entries:
        return
    spent_s = slowest(comm, time.perf_counter() - started)
    share_s = max(protocol.budget_s - spent_s, 0) / len(entries)
    # A block's own cost besides its iterations: switching, barriers, the runs that lead in.
    costs = [(e.result.iterations + e.lead_in(e.result.iterations)) * e.call_s + BLOCK_S for e in entries]
    counts = [max(min_blocks - turns, min(max_blocks - turns, int(share_s / cost))) for cost in costs]
    if protocol.race > 0:  # who is left is compared block by block
        counts = [min(counts)] * len(entries)
    _interleave(comm, entries, counts, random.Random(f"{name} {turns}"))


def _interleave(comm: Group, entries: list[Entry], counts: list[int], order: random.Random) -> None:
    """Run so many blocks of each in random turns; a slow candidate has fewer of them, spread over all rounds."""
    rounds = max(counts)
    for turn in range(rounds):
        due = [
            entry
            for entry, count in zip(entries, counts, strict=True)
            if (turn + 1) * count // rounds > turn * count // rounds
        ]
        order.shuffle(due)
        for entry in due:
            took = block(comm, entry, entry.result.iterations)
            entry.result.times_s.append(took / entry.result.iterations)
            if entry.starter is None:
                entry.result.issue_s.append(entry.issued_s / entry.result.iterations)


def _race(comm: Group, entries: list[Entry], ratio: float) -> list[Entry]:
    """Return who is still in it; all ranks decide on the same times. A low block counts: high ones may be noise."""
    everyone = comm.all_gather_object([entry.result.times_s for entry in entries])
    slowest = [[max(block) for block in zip(*of_entry, strict=True)] for of_entry in zip(*everyone, strict=True)]
    best = min(statistics.median(times) for times in slowest)
    for entry, times in zip(entries, slowest, strict=True):
        entry.result.raced_out = sorted(times)[len(times) // 4] > ratio * best
    return [entry for entry in entries if not entry.result.raced_out]


def slowest(comm: Group, seconds: float) -> float:
    return float(max(comm.all_gather_object(seconds)))
