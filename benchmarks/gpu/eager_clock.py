"""Eager mode: a block is many calls without a synchronisation; host time until all are made, and until all are done."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence

import torch
from candidate import BUFFERS, Entry, Run, agree, checked, combine
from case import Truth, poison
from graph_clock import Budget

from commlib.communicator import Communicator

CALLS = 102  # a multiple of the buffers; 34 on one buffer stay finite in place


def measure(comm: Communicator, entries: Sequence[Entry], budget: Budget, restore: Callable[[], object]) -> None:
    """Measure the candidates of one case; results are in the entries. `restore()` puts the plan back."""
    truth = Truth(entries[0].case)
    runs: dict[str, list[Run]] = {}
    for entry in entries:
        entry.calls = CALLS
        entry.attempt(Entry.allocate)
    ready = agree(comm, entries)
    for entry in ready:
        entry.attempt(lambda one: runs.update({one.candidate.label: _first_calls(one, truth)}))
    restore()
    ready = agree(comm, entries)
    try:
        _check(comm, ready, runs, truth)
        _run_blocks(comm, ready, runs, budget, truth)
        _check(comm, ready, runs, truth)
    finally:
        restore()
    combine(comm, ready)


def synchronize(entry: Entry) -> None:
    """Wait for everything on the device."""
    if entry.case.device.type == "cuda":
        torch.cuda.synchronize()


def _first_calls(entry: Entry, truth: Truth) -> list[Run]:
    entry.candidate.enter()
    calls = entry.runs()
    for (x, _), run in zip(entry.pairs, calls, strict=True):
        x.copy_(truth.input)
        checked(run)
    synchronize(entry)
    return (calls * (CALLS // BUFFERS + 1))[:CALLS]


def _block(comm: Communicator, entry: Entry, runs: Sequence[Run], truth: Truth) -> tuple[float, float]:
    """Run one block on all ranks at once; return this rank's seconds per call, of the host and to the end."""
    entry.candidate.enter()
    for x, _ in entry.pairs:
        x.copy_(truth.input)
    comm.barrier()
    synchronize(entry)
    start = time.perf_counter()
    for run in runs:
        run()
    made = time.perf_counter()
    synchronize(entry)
    done = time.perf_counter()
    return (made - start) / len(runs), (done - start) / len(runs)


def _check(comm: Communicator, entries: Sequence[Entry], runs: dict[str, list[Run]], truth: Truth) -> None:
    for entry in entries:
        for _, out in entry.pairs:
            poison(out)
        _block(comm, entry, runs[entry.candidate.label], truth)
        in_place = CALLS // BUFFERS if entry.candidate.in_place else 1
        entry.wrong += sum(truth.wrong(out, in_place) for _, out in entry.pairs)


def _run_blocks(
    comm: Communicator, entries: Sequence[Entry], runs: dict[str, list[Run]], budget: Budget, truth: Truth
) -> None:
    if not entries:
        return
    start = time.perf_counter()
    for entry in entries:
        _block(comm, entry, runs[entry.candidate.label], truth)
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
                host_s, total_s = _block(comm, entry, runs[entry.candidate.label], truth)
                entry.host_s.append(host_s)
                entry.times_s.append(total_s)
    finally:
        gc.enable()
