"""Where the time of one call goes, on live ranks: phases on the host, and on GPUs those of the kernel's blocks.

A rank's host stamps what it does; blocks of its kernels mark what they do. Both are read back as times of phases.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, cycle, islice, pairwise
from statistics import fmean, median
from typing import Any, NamedTuple

import torch

from commlib.collectives.reference import ordered
from commlib.communicator import Communicator
from commlib.errors import CommError, Unsupported
from commlib.native import library
from commlib.plan import Plan
from commlib.tools.bench.job import Job, calls, forms
from commlib.tools.timing import Candidate, Measurement, Run, buffers_of, measure, plain_on, public_call, twin_of
from commlib.tools.timing.blocks import undisturbed

PHASES = library.phases().split()
PYTHON, START, OVER, IDLE = "python", "start", "over", "idle"  # idle: a block has not begun, or is done
TRACKS = ("blocks", "senders")  # of kernels, as csrc/device/marks.cuh has them; a block waits for its sender
_PHASE_SHIFT = 56
ROOM = 1 << 19  # stamps of a block of calls
BLOCKS = 8  # of calls
MIN_CALLS, MAX_CALLS, LEAD_IN, WAITED_FOR = 3, 96, 16, 15  # of a block
LOOKS, TRIES = 400, 5  # at the clock, to see what that takes
HOST, GPU = "host", "gpu"
DEVICE, GAP = "device", "gap"  # all of what the GPU does; from launch to start, and from the end to who waits for it
Parts = dict[tuple[str, str], float]  # where, phase → ns
HostCall = list[tuple[str, float]]  # its phases in turn, and their ns


class Span(NamedTuple):
    """A phase of a block of a kernel, on the GPU's clock."""

    phase: str
    start_ns: float
    end_ns: float


KernelCall = list[list[Span]]  # one call of a kernel, by block; empty without a kernel of ours


class Traced(NamedTuple):
    """A call with stamps."""

    call_ns: float
    parts: Parts


class Times(NamedTuple):
    """What a rank measured; `usual` calls are the second quarter by their time: others disturb slower ones."""

    calls: int
    usual_ns: float  # of a call with stamps
    plain_ns: float  # of a call without
    parts: Parts  # of a usual call
    blocks: int  # of the kernel
    wrong: int | None


def _times(calls: Sequence[Traced], blocks: int, checked: Measurement) -> Times:
    ordered_calls = sorted(calls, key=lambda call: call.call_ns)
    usual = ordered_calls[len(calls) // 4 : -(-len(calls) // 2)]
    keys = dict.fromkeys(chain.from_iterable(call.parts for call in usual))
    parts = {key: fmean(call.parts.get(key, 0.0) for call in usual) for key in keys}
    usual_ns = fmean(call.call_ns for call in usual)
    return Times(len(calls), usual_ns, checked.median_s * 1e9, parts, blocks, checked.wrong)


# --- stamps of the host


def host_calls(stamps: torch.Tensor, bounds: Sequence[int]) -> list[HostCall]:
    """Return the phases between each two bounds, which are times of perf_counter_ns()."""
    rows = stamps.view(-1, 2)
    count, room = int(rows[0, 0]), len(rows) - 1
    if count > room:
        raise CommError(f"{count} stamps were made, but there is room for {room}; make fewer calls at once")
    made = ((at, PHASES[phase]) for at, phase in rows[1 : count + 1].tolist() if bounds[0] < at < bounds[-1])
    changes = sorted([*made, *((at, "") for at in bounds)], key=lambda change: change[0])
    calls: list[HostCall] = []
    now = PYTHON
    for (start, phase), (end, _) in pairwise(changes):
        if phase:
            now = phase
        else:
            calls.append([])
        if end > start:
            calls[-1].append((now, end - start))
    return calls


def _traced(calls: Sequence[HostCall], clock_ns: float) -> Iterator[Traced]:
    """Yield calls without what their stamps take: each is in the phase that it ends."""
    stamp_ns = median(min(ns for _, ns in call) for call in calls)  # there nothing is done but a stamp
    for call in calls:
        parts: Parts = {}
        for (phase, ns), cost_ns in zip(call, [stamp_ns] * (len(call) - 1) + [clock_ns], strict=True):
            parts[HOST, phase] = parts.get((HOST, phase), 0.0) + max(ns - cost_ns, 0.0)
        yield Traced(sum(ns for _, ns in call), parts)


def clocked(runs: Sequence[Run]) -> list[int]:
    """Make calls, and return when each began; the last time is when the last one ended."""
    clock = time.perf_counter_ns
    bounds = [clock()]
    for run in runs:
        run()
        bounds.append(clock())
    return bounds


def cost_of_clock() -> float:
    """Return what a look at the clock takes, once in a call."""
    setup = "from time import perf_counter_ns as clock; bounds = []"
    return min(timeit.repeat("bounds.append(clock())", setup, number=LOOKS, repeat=TRIES)) / LOOKS * 1e9


# --- marks of a kernel's blocks


def _table(marks: torch.Tensor) -> torch.Tensor:
    """View marks by track, block, and mark; the first row of each block has its count, and how many have room."""
    return marks.view(len(TRACKS), -1, int(marks[1]) + 1, 2)


def _counts(marks: torch.Tensor) -> torch.Tensor:
    return _table(marks)[:, :, 0, 0]


def max_marks(marks: torch.Tensor) -> int:
    return int(_counts(marks).max())


def kernel_calls(marks: torch.Tensor) -> list[KernelCall]:
    """Return what each call of a kernel did, of those that all blocks have marked to their end; times of the GPU."""
    table, made, room = _table(marks), max_marks(marks), int(marks[1])
    if made > room:
        raise CommError(f"a block made {made} marks, but there is room for {room}; make fewer calls at once")
    blocks = [_calls_of(rows) for rows in table[0, :, : made + 1].tolist() if rows[0][0]]
    spent = [(last[2] - first[2], last[1] - first[1]) for calls in blocks for first, *_, last in calls]
    ns_of_cycle = sum(ns for ns, _ in spent) / max(sum(cycles for _, cycles in spent), 1)
    complete = min(map(len, blocks), default=0)
    return [[_spans(calls[at], ns_of_cycle) for calls in blocks] for at in range(complete)]


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


def _spans(marks: Sequence[_Mark], ns_of_cycle: float) -> list[Span]:
    _, first, start_ns = marks[0]
    times = [start_ns + (clock - first) * ns_of_cycle for _, clock, _ in marks]
    return [Span(phase, at, end) for (phase, *_), (at, end) in zip(marks, pairwise(times), strict=False)]


def kernel_durations(call: KernelCall) -> Parts:
    """Return how long each phase took on average over the blocks; they add up to the time from start to end."""
    means: dict[str, float] = {}
    for phase, start_ns, end_ns in chain.from_iterable(call):
        means[phase] = means.get(phase, 0.0) + (end_ns - start_ns) / len(call)
    started_ns = min(spans[0].start_ns for spans in call)
    ended_ns = max(spans[-1].end_ns for spans in call)
    means[IDLE] = ended_ns - started_ns - sum(means.values())
    return {(GPU, phase): ns for phase, ns in means.items()}


# --- the calls


class Phases:
    """One call, made by all ranks under a plan that may leave no choice; a twin keeps the ranks' exchanges apart."""

    def __init__(self, comm: Communicator, job: Job, symmetric: bool) -> None:
        comm.resources.stamp(0)  # raises where there is no native code
        twin = twin_of(comm)
        self.comm, self.job, self.twin = comm, job, twin
        ((self.collective, self.call),) = calls(comm, job)
        self._marks: torch.Tensor | None = None
        self.placement = "symmetric" if symmetric else "plain"
        (name,) = job.algorithms
        plan = comm.plan if name == "auto" else Plan.only({self.collective.name: name}, base=comm.plan)
        twin.use(plan)
        asked = self.collective.name, self.collective.num_bytes(self.call), self.call.dtype, self.call.redop
        self.why = twin.explain(*asked, placement=self.placement, mode=job.mode)
        empty = twin.empty if symmetric else plain_on(comm.device)
        in_place = forms(job, self.collective)[0]
        self._candidate = Candidate(self.why.algorithm, public_call(twin, self.collective), in_place, empty)

    def run(self) -> Times:
        """Time a call and check its values, as every table does, then make calls with stamps."""
        job, on_gpu = self.job, self.comm.device.type == "cuda"
        protocol = replace(job.protocol, budget_s=job.seconds / 2)
        (checked,) = measure(self.comm, self.collective, self.call, ordered, [self._candidate], protocol)
        if checked.skipped:
            raise Unsupported(f"{self.why.algorithm} cannot make this call: {checked.skipped}")
        pairs = [buffers_of(self.collective, self.call, self._candidate) for _ in range(protocol.buffers)]
        for x, _ in pairs:
            x.zero_()
        runs = cycle([self._candidate.prepare(x, out, self.call) for x, out in pairs])
        make = self._waited_for if on_gpu else self._in_a_row
        wanted = int(job.seconds / 2 / (BLOCKS * checked.median_s))
        with undisturbed():
            traced, blocks = make(runs, max(MIN_CALLS, min(MAX_CALLS, wanted)))
        self._stamp(0)
        self.comm.barrier()
        return _times(traced, blocks, checked)

    def _in_a_row(self, runs: Iterator[Run], wanted: int) -> tuple[list[Traced], int]:
        stamps = self._stamp(ROOM)
        clocked(list(islice(runs, MIN_CALLS)))
        of_call = 2 * -(-int(stamps[0]) // MIN_CALLS)  # waits that are answered at once have fewer
        many = LEAD_IN + self._fewest(min(wanted, ROOM // of_call - LEAD_IN))
        hosts = list[HostCall]()
        for _ in range(BLOCKS):
            stamps = self._stamp(of_call * many)  # no more, as memory that is touched for the first time is slow
            self.comm.barrier()
            hosts += host_calls(stamps, clocked(list(islice(runs, many))))[LEAD_IN:]
        return list(_traced(hosts, cost_of_clock())), 0

    def _waited_for(self, runs: Iterator[Run], wanted: int) -> tuple[list[Traced], int]:
        """Return calls on GPUs of which each is waited for before the next one."""
        hosts, made, whole_ns = list[HostCall](), list[KernelCall](), list[float]()
        for _ in range(BLOCKS):
            stamps = self._stamp(ROOM)
            many = min(wanted, WAITED_FOR, self._load(runs))
            bounds = self._clocked_to_the_end(runs, many)
            hosts += host_calls(stamps, bounds)[::3]
            made += self._kernel_calls(many)
            whole_ns += [end - start for start, end in zip(bounds[::3], bounds[2::3], strict=True)]
        traced = []
        for host, call, ns in zip(_traced(hosts, cost_of_clock()), made, whole_ns, strict=True):
            parts = kernel_durations(call) if call else {}
            parts[GPU, GAP if call else DEVICE] = ns - host.call_ns - sum(parts.values())
            traced.append(Traced(ns, {**host.parts, **parts}))
        return traced, len(made[0])

    def _clocked_to_the_end(self, runs: Iterator[Run], many: int) -> list[int]:
        """Make calls; return of each when it began, when it returned, and when the GPU was done."""
        clock, bounds = time.perf_counter_ns, list[int]()
        for run in islice(runs, many):
            torch.cuda.synchronize(self.comm.device)
            self.comm.barrier()
            bounds.append(clock())
            run()
            bounds.append(clock())
            torch.cuda.synchronize(self.comm.device)
            bounds.append(clock())
        return bounds

    def _load(self, runs: Iterator[Run]) -> int:
        """Load the kernels with their marks; return how many calls have room for these."""
        clocked(list(islice(runs, MIN_CALLS)))
        torch.cuda.synchronize(self.comm.device)
        group: Any = self.twin.resources.native_group
        self._marks = marks = group.marks()
        marked = 0 if marks is None else max_marks(marks)
        if marks is None or not marked:  # without a kernel of ours there are none
            self._marks = None
            return self._fewest(MAX_CALLS)
        _counts(marks).zero_()
        return self._fewest(int(marks[1]) // -(-marked // MIN_CALLS))

    def _kernel_calls(self, many: int) -> list[KernelCall]:
        """Return what the kernels of the last calls did, and make room for the next."""
        if self._marks is None:
            return [[]] * many
        torch.cuda.synchronize(self.comm.device)
        calls = kernel_calls(self._marks)
        _counts(self._marks).zero_()
        if len(calls) != many:
            raise CommError(f"{many} calls were made, but {len(calls)} have marks of their beginning and their end")
        return calls

    def _stamp(self, room: int) -> torch.Tensor:
        made = self.twin.resources.stamp(room)
        return torch.empty(0) if made is None else made

    def _fewest(self, number: int) -> int:
        return max(1, min(self.comm.all_gather_object(number)))
