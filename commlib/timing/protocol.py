"""The protocol itself: prepare | check | calibrate | interleaved blocks | check | slowest rank.

A block is a row of calls by the host; in graph mode it is the replay of a graph of them.
"""

from __future__ import annotations

import gc
import math
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from commlib.errors import CommError, Unsupported
from commlib.timing import graph
from commlib.timing.candidate import Candidate, Run
from commlib.timing.truth import Truth

if TYPE_CHECKING:
    from commlib.collectives.spec import Call, Collective, Fold
    from commlib.communicator import Communicator

MAX_ITERATIONS = 20_000
# Long against a barrier's jitter; where ranks share cores, against a time slice; on GPUs, against the wait at its end.
BLOCK_S, LONG_BLOCK_S = 200e-6, 2e-3
SHORT_S = 0.01  # calls up to here are led in, and calibrated three times: a hiccup is of their size


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
    seed: int = 0
    graph: bool = False
    race: float = 0.0  # leave out, after the least blocks, whoever takes so many times the best's; 0: nobody


@dataclass
class Measurement:
    """What one candidate took: for each block, seconds per iteration on the slowest rank."""

    label: str
    in_place: bool
    iterations: int = 0
    times_s: list[float] = field(default_factory=list)
    wrong: int | None = None
    skipped: str = ""  # why it was not measured
    raced_out: bool = False  # too slow to be measured to the end

    @property
    def median_s(self) -> float:
        """The figure to print."""
        return statistics.median(self.times_s)

    def percentile_s(self, percent: float) -> float:
        """Return the block time that `percent` of the blocks did not exceed."""
        return sorted(self.times_s)[round(percent / 100 * (len(self.times_s) - 1))]


def measure(
    comm: Communicator,
    collective: Collective,
    call: Call,
    fold: Fold,
    candidates: Sequence[Candidate],
    protocol: Protocol = Protocol(),
) -> list[Measurement]:
    """Time the candidates block by block, in an order that is random and the same on all ranks.

    `comm` keeps the ranks together between blocks; candidates that switch plans use another communicator.
    """
    started = time.perf_counter()
    truth = Truth(collective, call, fold) if protocol.check else None
    with graph.own_stream(comm) if protocol.graph else nullcontext():
        entries = _prepare_all(comm, collective, call, candidates, protocol)
        _check(comm, entries, truth, slice(1))
        ready = [entry for entry in entries if not entry.result.skipped]
        if protocol.block_s is None:
            protocol = replace(protocol, block_s=block_seconds(comm))
        quick = [entry for entry in ready if entry.call_s <= protocol.slow_s]
        slow = [entry for entry in ready if entry.call_s > protocol.slow_s]
        _check(comm, quick, truth, slice(1, None))
        with _undisturbed():
            for entry in slow:
                entry.result.iterations, entry.result.times_s = 1, [_block(comm, entry, 1)]
            for entry in quick:
                _calibrate(comm, entry, protocol)
            name = f"{collective.name} {call.count}"
            if protocol.graph:
                _run_graphs(comm, quick, protocol, (started, name))
            else:
                _run_blocks(comm, quick, protocol, (started, name))
        _check(comm, quick, truth, slice(1))
        _combine(comm, ready)
    return [entry.result for entry in entries]


@contextmanager
def _undisturbed() -> Iterator[None]:
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def block_seconds(comm: Communicator) -> float:
    """Return how long a block is unless the protocol says."""
    return LONG_BLOCK_S if comm.device.type == "cuda" or comm.size > (os.cpu_count() or 1) else BLOCK_S


class _Entry:
    """A candidate with its buffers, and what it took so far on this rank."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.result = Measurement(candidate.label, candidate.in_place)
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.runs: list[Run] = []
        self.call_s = 0.0  # of a first call and its check, then of one in a row
        self.graph: Any = None
        self.starter: graph.Starter | None = None
        self._next = 0

    def following(self, iterations: int) -> list[Run]:
        """Return the next runs in rotation, as one list: the loop over it costs next to nothing."""
        n, first = len(self.runs), self._next
        self._next = (first + iterations) % n
        turn = self.runs[first:] + self.runs[:first]
        return (turn * (iterations // n + 1))[:iterations]


def _prepare_all(
    comm: Communicator,
    collective: Collective,
    call: Call,
    candidates: Sequence[Candidate],
    protocol: Protocol,
) -> list[_Entry]:
    """Allocate and prepare; candidates that want the same kind of memory share it."""
    shared: dict[Any, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    entries = []
    for candidate in candidates:
        entry = _Entry(candidate)
        key = (candidate.empty, candidate.in_place)
        try:
            if key not in shared:
                shared[key] = [_buffers(collective, call, candidate) for _ in range(protocol.buffers)]
            entry.pairs = shared[key]
            entry.runs = [candidate.prepare(x, out, call) for x, out in entry.pairs]
        except (CommError, MemoryError) as error:
            entry.result.skipped = str(error)
        entries.append(entry)
    _agree(comm, entries)
    return entries


def _buffers(collective: Collective, call: Call, candidate: Candidate) -> tuple[torch.Tensor, torch.Tensor]:
    elements_in, elements_out = collective.shapes(call)
    if not candidate.in_place:
        return candidate.empty(elements_in, call.dtype), candidate.empty(elements_out, call.dtype)
    if collective.in_place is None:
        raise Unsupported(f"{collective.name} has no in-place form")
    return collective.in_place(call, candidate.empty(max(elements_in, elements_out), call.dtype))


def _agree(comm: Communicator, entries: Sequence[_Entry]) -> None:
    """Skip on all ranks what one rank cannot run: it would be waited for. And take the slowest rank's time."""
    everyone = comm.all_gather_object([(entry.result.skipped, entry.call_s) for entry in entries])
    for entry, of_ranks in zip(entries, zip(*everyone, strict=True), strict=True):
        entry.result.skipped = next((reason for reason, _ in of_ranks if reason), "")
        entry.call_s = max(call_s for _, call_s in of_ranks)


def _check(comm: Communicator, entries: Sequence[_Entry], truth: Truth | None, which: slice) -> None:
    """Make calls of each candidate on some of its buffers, and add up the wrong elements."""
    for entry in entries:
        if entry.result.skipped:
            continue
        entry.candidate.enter()
        start = time.perf_counter()
        try:
            for (x, out), run in list(zip(entry.pairs, entry.runs, strict=True))[which]:
                if truth is None:
                    run()
                else:
                    entry.result.wrong = (entry.result.wrong or 0) + truth.wrong(x, out, run)
        except Unsupported as error:
            entry.result.skipped = str(error)
        except CommError:
            raise  # the world has ended for all candidates
        except Exception as error:  # what a peer raises is why it is left out
            entry.result.skipped = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        entry.call_s = time.perf_counter() - start
    _agree(comm, entries)


def _block(comm: Communicator, entry: _Entry, iterations: int) -> float:
    """Run one block on all ranks at once and return this rank's seconds."""
    if entry.starter is not None:
        comm.barrier()
        return entry.starter.time(entry.graph)
    entry.candidate.enter()
    comm.barrier()  # takes up the ranks' distance: who slept in it wakes late
    if entry.call_s < SHORT_S:
        entry.following(1)[0]()  # this candidate's code and flags into the caches
    runs = entry.following(iterations)
    comm.barrier()
    comm.barrier()
    start = time.perf_counter()
    for run in runs:
        run()
    if comm.device.type == "cuda":
        torch.cuda.synchronize(comm.device)  # a call returns when it is enqueued; the figure is of the data's arrival
    return time.perf_counter() - start


def _calibrate(comm: Communicator, entry: _Entry, protocol: Protocol) -> None:
    """Warm up, and find how many iterations fill a block."""
    assert protocol.block_s is not None
    _block(comm, entry, protocol.warmup)
    count = protocol.iterations or 1
    while True:
        tries = 3 if entry.call_s < SHORT_S else 1  # one disturbed block would make all that follow too short
        took = min(_slowest(comm, _block(comm, entry, count)) for _ in range(tries))
        if protocol.iterations or took >= protocol.block_s / 2 or count >= MAX_ITERATIONS:
            break
        count = min(10 * count, MAX_ITERATIONS)
    entry.call_s = took / count
    wanted = math.ceil(protocol.block_s / entry.call_s)
    entry.result.iterations = protocol.iterations or max(1, min(wanted, MAX_ITERATIONS))


def _run_graphs(comm: Communicator, entries: list[_Entry], protocol: Protocol, begun: tuple[float, str]) -> None:
    """Capture what was calibrated, run the blocks on the replays, and give the graphs back."""
    starter = graph.Starter(comm)
    for entry in entries:
        calls = min(entry.result.iterations, graph.MOST_CALLS)
        entry.result.iterations = protocol.iterations or -(-calls // protocol.buffers) * protocol.buffers
        entry.candidate.enter()
        try:
            entry.graph = graph.captured(entry.following(entry.result.iterations))
        except CommError as error:
            entry.result.skipped = str(error)
    _agree(comm, entries)
    ready = [entry for entry in entries if not entry.result.skipped]
    try:
        for entry in ready:
            entry.starter = starter
            entry.call_s = _slowest(comm, _block(comm, entry, 0)) / entry.result.iterations  # and to the device with it
        _run_blocks(comm, ready, protocol, begun)
    finally:
        starter.close()
        for entry in entries:
            if entry.graph is not None:
                entry.graph.reset()
            entry.graph = entry.starter = None
    comm.barrier()  # not after an error or Ctrl-C: nobody may come


def _run_blocks(comm: Communicator, entries: list[_Entry], protocol: Protocol, begun: tuple[float, str]) -> None:
    """Run blocks as the time since `begun` allows; with a race, first a few of each, then of those that are left."""
    started, name = begun
    least, most = protocol.blocks
    turns = 0  # that everyone has had
    if protocol.race > 0 and len(entries) > 1 and most > least:
        _interleave(comm, entries, [least] * len(entries), random.Random(f"{protocol.seed} {name}"))
        entries, turns = _race(comm, entries, protocol.race), least
        least *= 3  # enough to choose on some and judge on others
    if not entries:
        return
    spent_s = _slowest(comm, time.perf_counter() - started)
    share_s = max(protocol.budget_s - spent_s, 0) / len(entries)
    # A block's own cost besides its iterations: switching, barriers, the run that leads in.
    costs = [(e.result.iterations + 1) * e.call_s + BLOCK_S for e in entries]
    counts = [max(least - turns, min(most - turns, int(share_s / cost))) for cost in costs]
    if protocol.race > 0:  # who is left is compared block by block
        counts = [min(counts)] * len(entries)
    _interleave(comm, entries, counts, random.Random(f"{protocol.seed} {name} {turns}"))


def _interleave(comm: Communicator, entries: list[_Entry], counts: list[int], order: random.Random) -> None:
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
            took = _block(comm, entry, entry.result.iterations)
            entry.result.times_s.append(took / entry.result.iterations)


def _race(comm: Communicator, entries: list[_Entry], ratio: float) -> list[_Entry]:
    """Return who is still in it; all ranks decide on the same times. A low block counts: high ones may be noise."""
    everyone = comm.all_gather_object([entry.result.times_s for entry in entries])
    slowest = [[max(block) for block in zip(*of_entry, strict=True)] for of_entry in zip(*everyone, strict=True)]
    best = min(statistics.median(times) for times in slowest)
    for entry, times in zip(entries, slowest, strict=True):
        entry.result.raced_out = sorted(times)[len(times) // 4] > ratio * best
    return [entry for entry in entries if not entry.result.raced_out]


def _slowest(comm: Communicator, seconds: float) -> float:
    """Return the slowest rank's time on all ranks."""
    return max(comm.all_gather_object(seconds))


def _combine(comm: Communicator, entries: Sequence[_Entry]) -> None:
    """Make every rank's times the slowest rank's, and its wrong elements everybody's."""
    everyone = comm.all_gather_object([(entry.result.times_s, entry.result.wrong) for entry in entries])
    for at, entry in enumerate(entries):
        times, wrong = zip(*(of_rank[at] for of_rank in everyone), strict=True)
        entry.result.times_s = [max(block) for block in zip(*times, strict=True)]
        entry.result.wrong = None if wrong[0] is None else sum(wrong)
