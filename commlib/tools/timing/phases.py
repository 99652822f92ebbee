"""Phases of calls: what a rank's stamps on the host say of each call, and what blocks of its kernels have marked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

import torch

from commlib.errors import CommError
from commlib.native import library

PHASES = library.phases().split()
PYTHON, START, OVER = "python", "start", "over"
IDLE = "idle"  # a block has not begun, or is done
TRACKS = ("blocks", "senders")  # of kernels, as csrc/device/marks.cuh has them
_PHASE_SHIFT = 56


class Span(NamedTuple):
    phase: str
    start_ns: float
    end_ns: float

    @property
    def ns(self) -> float:
        return self.end_ns - self.start_ns

    def moved(self, ns: float) -> Span:
        return Span(self.phase, self.start_ns + ns, self.end_ns + ns)


Spans = list[Span]
KernelCall = Mapping[str, Sequence[Spans]]  # one call of a kernel: of each track, the spans of each block that has some


def durations(spans: Iterable[Span], low: float = float("-inf")) -> dict[str, float]:
    """Return how long each phase took after `low`, in the order of PHASES."""
    found = dict.fromkeys(PHASES, 0.0)
    for span in spans:
        found[span.phase] += max(span.end_ns - max(span.start_ns, low), 0.0)
    return {phase: ns for phase, ns in found.items() if ns}


# --- the host


def host_spans(stamps: torch.Tensor, bounds: Sequence[int]) -> list[Spans]:
    """Return the phases between each two bounds, which are times of perf_counter_ns()."""
    rows = stamps.view(-1, 2)
    count, room = int(rows[0, 0]), len(rows) - 1
    if count > room:
        raise CommError(f"{count} stamps were made, but there is room for {room}; make fewer calls at once")
    made = [(at, PHASES[phase]) for at, phase in rows[1 : count + 1].tolist() if at > bounds[0]]
    changes = [(bounds[0], PYTHON), *made, (bounds[-1], PYTHON)]
    return list(_cut([Span(phase, at, end) for (at, phase), (end, _) in pairwise(changes)], bounds))


def _cut(spans: Sequence[Span], bounds: Sequence[int]) -> Iterator[Spans]:
    """Yield the spans between each two bounds; one that crosses a bound is on both of its sides."""
    first = 0
    for low, high in pairwise(bounds):
        while spans[first].end_ns <= low and first + 1 < len(spans):
            first += 1
        found, at = [], first
        while at < len(spans) and spans[at].start_ns < high:
            found.append(Span(spans[at].phase, max(spans[at].start_ns, low), min(spans[at].end_ns, high)))
            at += 1
        yield found


# --- kernels


def _table(marks: torch.Tensor) -> torch.Tensor:
    """View marks by track, block, and mark; the first row of each block has its count, and how many have room."""
    return marks.view(len(TRACKS), -1, int(marks[1]) + 1, 2)


def counts_of(marks: torch.Tensor) -> torch.Tensor:
    return _table(marks)[:, :, 0, 0]


def most_marks(marks: torch.Tensor) -> int:
    return int(counts_of(marks).max())


def kernel_calls(marks: torch.Tensor) -> list[KernelCall]:
    """Return what each call of a kernel did, of those that all blocks have marked to their end; times of the GPU."""
    table, most, room = _table(marks), most_marks(marks), int(marks[1])
    if most > room:
        raise CommError(f"a block made {most} marks, but there is room for {room}; make fewer calls at once")
    blocks, senders = ([_calls_of(rows) for rows in track if rows[0][0]] for track in table[:, :, : most + 1].tolist())
    spent = [(last[2] - first[2], last[1] - first[1]) for calls in blocks for first, *_, last in calls]
    ns_of_cycle = sum(ns for ns, _ in spent) / max(sum(cycles for _, cycles in spent), 1)
    found: list[KernelCall] = []
    for at in range(min(map(len, blocks), default=0)):
        of_call = [calls[at] for calls in blocks]
        # A sender is on the multiprocessor of its block: one clock, which its block's start places in time.
        of_senders = zip(of_call, (calls[at] for calls in senders), strict=False)
        found.append(
            {
                "blocks": [_spans(marks, marks[0], ns_of_cycle) for marks in of_call],
                "senders": [_spans(marks, block[0], ns_of_cycle) for block, marks in of_senders],
            }
        )
    return found


_Mark = tuple[str, int, int]  # phase, clock of the multiprocessor, time of the GPU


def _calls_of(rows: Sequence[Sequence[int]]) -> list[list[_Mark]]:
    """Return the marks of each call of a block; a call ends with OVER."""
    calls: list[list[_Mark]] = [[]]
    for word, ns in rows[1 : rows[0][0] + 1]:
        phase = PHASES[word >> _PHASE_SHIFT]
        if phase == START:
            calls[-1] = []  # the call before, if that did not come to its end, is left out
        calls[-1].append((phase, word & ((1 << _PHASE_SHIFT) - 1), ns))
        if phase == OVER:
            calls.append([])
    return calls[:-1]


def _spans(marks: Sequence[_Mark], anchor: _Mark, ns_of_cycle: float) -> Spans:
    times = [anchor[2] + (clock - anchor[1]) * ns_of_cycle for _, clock, _ in marks]
    return [Span(phase, at, end) for (phase, *_), (at, end) in zip(marks, pairwise(times), strict=False)]


def began(call: KernelCall) -> float:
    return min(spans[0].start_ns for spans in call["blocks"])


def ended(call: KernelCall) -> float:
    return max(spans[-1].end_ns for spans in call["blocks"])


def kernel_durations(call: KernelCall, low: float) -> dict[str, float]:
    """Return how long each phase took on average over the blocks; they add up to the time from `low` to the end."""
    each = [durations(spans, low) for spans in call["blocks"]]
    found = {phase: fmean(of.get(phase, 0.0) for of in each) for phase in PHASES if any(phase in of for of in each)}
    return {IDLE: ended(call) - low - sum(found.values()), **found}
