"""The protocol itself: prepare | check | calibrate | interleaved blocks | check | slowest rank."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from commlib.collectives.spec import Call, Collective, Fold
from commlib.communicator import Communicator
from commlib.errors import CommError, Unsupported, one_line
from commlib.tools.timing import graph
from commlib.tools.timing.blocks import (
    DEFAULT,
    Entry,
    Group,
    Measurement,
    Protocol,
    agree,
    block,
    slowest,
    take_turns,
    undisturbed,
)
from commlib.tools.timing.candidate import Candidate, Run, Truth


def measure(
    comm: Communicator,
    collective: Collective,
    call: Call,
    fold: Fold,
    candidates: Sequence[Candidate],
    protocol: Protocol = DEFAULT,
) -> list[Measurement]:
    """Time the candidates block by block, in an order that is random and the same on all ranks.

    `comm` keeps the ranks together between blocks; candidates that switch plans use another communicator.
    """
    started = time.perf_counter()
    truth = Truth(collective, call, fold) if protocol.check else None
    with graph.separate_stream(comm.device) if protocol.graph else nullcontext():
        entries = _prepare_all(comm, collective, call, candidates, protocol)
        _check(comm, entries, truth, slice(1))
        ready = [entry for entry in entries if not entry.result.skipped]
        quick = [entry for entry in ready if entry.call_s <= protocol.slow_s]
        slow = [entry for entry in ready if entry.call_s > protocol.slow_s]
        _check(comm, quick, truth, slice(1, None))
        with undisturbed():
            again = [entry for entry in slow if not _is_slow(comm, entry, protocol)]
            take_turns(comm, [*quick, *again], protocol, (started, f"{collective.name} {call.count}"))
        if protocol.graph:
            _check_replays(comm, quick, truth)
        _check(comm, quick, truth, slice(1))
        _combine(comm, ready)
    return [entry.result for entry in entries]


def _is_slow(comm: Communicator, entry: Entry, protocol: Protocol) -> bool:
    """Make the second call, which measures a slow one: the first may have connected, compiled or been compared."""
    took_s = block(comm, entry, 1)
    entry.call_s = slowest(comm, took_s)
    slow = entry.call_s > protocol.slow_s
    entry.result.iterations, entry.result.times_s = 1, [took_s] * slow
    return slow


def measure_calls(
    group: Group,
    calls: Mapping[str, Sequence[Run]],
    protocol: Protocol,
    name: str,
    enters: Mapping[str, Run] | None = None,
) -> list[Measurement]:
    """Time rows of calls that all ranks make, one call for each set of buffers; the caller has checked their values.

    What `enters` has for a row runs before each of its blocks, outside the clock. Everything runs on the current
    stream; graphs want one of their own (graph.separate_stream).
    """
    started = time.perf_counter()
    entries = [
        Entry(Measurement(label, False), (enters or {}).get(label, lambda: None), runs=list(runs))
        for label, runs in calls.items()
    ]
    sets = max((len(entry.runs) for entry in entries), default=1)
    with undisturbed():
        take_turns(group, entries, replace(protocol, buffers=sets), (started, name))
    _combine(group, entries)
    return [entry.result for entry in entries]


def _prepare_all(
    comm: Communicator,
    collective: Collective,
    call: Call,
    candidates: Sequence[Candidate],
    protocol: Protocol,
) -> list[Entry]:
    """Allocate and prepare; candidates that want the same kind of memory share it."""
    shared: dict[Any, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    entries = []
    for candidate in candidates:
        entry = Entry(Measurement(candidate.label, candidate.in_place), candidate.enter, candidate.checked)
        key = (candidate.empty, candidate.in_place)
        try:
            if key not in shared:
                shared[key] = [buffers_of(collective, call, candidate) for _ in range(protocol.buffers)]
            entry.pairs = shared[key]
            entry.runs = [candidate.prepare(x, out, call) for x, out in entry.pairs]
        except (CommError, MemoryError) as error:
            entry.result.skipped = str(error)
        entries.append(entry)
    agree(comm, entries)
    return entries


def buffers_of(collective: Collective, call: Call, candidate: Candidate) -> tuple[torch.Tensor, torch.Tensor]:
    elements_in, elements_out = collective.shapes(call)
    if not candidate.in_place:
        return candidate.empty(elements_in, call.dtype), candidate.empty(elements_out, call.dtype)
    if not collective.has_in_place:
        raise Unsupported(f"{collective.name} has no in-place form")
    return collective.in_place(call, candidate.empty(max(elements_in, elements_out), call.dtype))


def _check(comm: Communicator, entries: Sequence[Entry], truth: Truth | None, which: slice) -> None:
    """Make calls of each candidate on some of its buffers, and add up the wrong elements."""
    for entry in entries:
        if entry.result.skipped:
            continue
        entry.enter()
        start = time.perf_counter()
        try:
            for (x, out), run in list(zip(entry.pairs, entry.runs, strict=True))[which]:
                if truth is None or not entry.checked:
                    run()
                else:
                    entry.result.wrong = (entry.result.wrong or 0) + truth.wrong(x, out, run)
        except Unsupported as error:
            entry.result.skipped = str(error)
        except CommError:
            raise  # the world has ended for all candidates
        except Exception as error:  # what a peer raises is why it is left out
            entry.result.skipped = one_line(error)
        entry.call_s = time.perf_counter() - start
    agree(comm, entries)


def _check_replays(comm: Communicator, entries: Sequence[Entry], truth: Truth | None) -> None:
    """Check each call once more out of a graph of its own: replays may go wrong where eager calls are right."""
    for entry in entries:
        if entry.result.skipped or not entry.checked or truth is None:
            continue
        entry.enter()
        for (x, out), run in zip(entry.pairs, entry.runs, strict=True):
            replayed = graph.capture([run])
            entry.result.wrong = (entry.result.wrong or 0) + truth.wrong(x, out, replayed.replay)
            torch.cuda.synchronize(comm.device)
            replayed.reset()
    comm.barrier()


def _combine(comm: Group, entries: Sequence[Entry]) -> None:
    """Make every rank's times the slowest rank's, and its wrong elements everybody's."""
    everyone = comm.all_gather_object([(e.result.times_s, e.result.issue_s, e.result.wrong) for e in entries])
    for at, entry in enumerate(entries):
        times, issued, wrong = zip(*(of_rank[at] for of_rank in everyone), strict=True)
        entry.result.times_s = [max(block) for block in zip(*times, strict=True)]
        entry.result.issue_s = [max(block) for block in zip(*issued, strict=True)]
        entry.result.wrong = None if wrong[0] is None else sum(wrong)
