"""Where the time of one call goes, on live ranks: phases on the host, and on GPUs those of the kernel's blocks.

A rank's host stamps what it does; blocks of its kernels mark what they do. Both are read back as spans of phases.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, cycle, islice, pairwise
from statistics import fmean, median
from typing import Any, NamedTuple, TypeAlias

import torch

from commlib.collectives.reference import ordered
from commlib.communicator import Communicator
from commlib.errors import CommError, Unsupported
from commlib.native import library
from commlib.plan import Plan
from commlib.tools.bench.job import Job, calls, forms
from commlib.tools.timing import Candidate, Run, buffers_of, graph, measure, plain_on, public_call, twin_of
from commlib.tools.timing.blocks import undisturbed

PHASES = library.phases().split()
PYTHON, START, OVER, IDLE = "python", "start", "over", "idle"  # idle: a block has not begun, or is done
TRACKS = ("blocks", "senders")  # of kernels, as csrc/device/marks.cuh has them
_PHASE_SHIFT = 56
ROOM = 1 << 19  # stamps of a block of calls
BLOCKS = 8  # of calls without stamps, and as many with them, in turns
MIN_CALLS, MAX_CALLS, LEAD_IN, WAITED_FOR = 3, 96, 16, 15  # of a block; a graph's launch does not count
LOOKS, TRIES = 400, 5  # at the clock, to see what that takes
HOST, GPU = "host", "gpu"
DEVICE, GAP = "device", "gap"  # all of what the GPU does; from launch to start, and from the end to who waits for it
Parts = dict[tuple[str, str], float]  # where, phase → ns


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
    totals = dict.fromkeys(PHASES, 0.0)
    for span in spans:
        totals[span.phase] += max(span.end_ns - max(span.start_ns, low), 0.0)
    return {phase: ns for phase, ns in totals.items() if ns}


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
        inside, at = [], first
        while at < len(spans) and spans[at].start_ns < high:
            inside.append(Span(spans[at].phase, max(spans[at].start_ns, low), min(spans[at].end_ns, high)))
            at += 1
        yield inside


def _table(marks: torch.Tensor) -> torch.Tensor:
    """View marks by track, block, and mark; the first row of each block has its count, and how many have room."""
    return marks.view(len(TRACKS), -1, int(marks[1]) + 1, 2)


def counts_of(marks: torch.Tensor) -> torch.Tensor:
    return _table(marks)[:, :, 0, 0]


def max_marks(marks: torch.Tensor) -> int:
    return int(counts_of(marks).max())


def kernel_calls(marks: torch.Tensor) -> list[KernelCall]:
    """Return what each call of a kernel did, of those that all blocks have marked to their end; times of the GPU."""
    table, made, room = _table(marks), max_marks(marks), int(marks[1])
    if made > room:
        raise CommError(f"a block made {made} marks, but there is room for {room}; make fewer calls at once")
    blocks, senders = ([_calls_of(rows) for rows in track if rows[0][0]] for track in table[:, :, : made + 1].tolist())
    spent = [(last[2] - first[2], last[1] - first[1]) for calls in blocks for first, *_, last in calls]
    ns_of_cycle = sum(ns for ns, _ in spent) / max(sum(cycles for _, cycles in spent), 1)
    complete: list[KernelCall] = []
    for at in range(min(map(len, blocks), default=0)):
        of_call = [calls[at] for calls in blocks]
        # A sender is on the multiprocessor of its block: one clock, which its block's start places in time.
        of_senders = zip(of_call, (calls[at] for calls in senders), strict=False)
        complete.append(
            {
                "blocks": [_spans(marks, marks[0], ns_of_cycle) for marks in of_call],
                "senders": [_spans(marks, block[0], ns_of_cycle) for block, marks in of_senders],
            }
        )
    return complete


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
    means = {phase: fmean(of.get(phase, 0.0) for of in each) for phase in PHASES if any(phase in of for of in each)}
    return {IDLE: ended(call) - low - sum(means.values()), **means}


@dataclass
class Traced:
    call_ns: float
    parts: Parts
    host: Spans = field(default_factory=list)  # on the clock of perf_counter_ns()
    kernel: KernelCall = field(default_factory=dict)
    shift_ns: float = 0.0  # from the GPU's clock to the host's


Times: TypeAlias = "tuple[list[Traced], list[float]]"  # calls with stamps, nanoseconds of calls without


class Measured(NamedTuple):
    """What a rank measured: its calls, nanoseconds of calls without stamps, and the wrong elements of all ranks."""

    calls: list[Traced]
    plain_ns: list[float]
    wrong: int | None

    def usual(self) -> Sequence[Traced]:
        """Return the second quarter of the calls by their time: slower ones are disturbed by others on the machine."""
        return _second_quarter(sorted(self.calls, key=lambda call: call.call_ns))

    def usual_plain_ns(self) -> float:
        return fmean(_second_quarter(sorted(self.plain_ns)))

    def parts(self) -> Parts:
        usual = self.usual()
        keys = dict.fromkeys(chain.from_iterable(call.parts for call in usual))
        return {key: fmean(call.parts.get(key, 0.0) for call in usual) for key in keys}


def _second_quarter(items: Sequence[Any]) -> Sequence[Any]:
    return items[len(items) // 4 : -(-len(items) // 2)]


class Kernels:
    """The marks of a kernel's blocks, after so many calls; without a kernel of ours there are none."""

    def __init__(self, marks: torch.Tensor | None, made: int) -> None:
        marked = 0 if marks is None else max_marks(marks)
        self._marks = marks if marked else None
        self.room = MAX_CALLS if marks is None or not marked else int(marks[1]) // -(-marked // made)

    def clear(self) -> None:
        if self._marks is not None:
            counts_of(self._marks).zero_()

    def calls(self, many: int) -> list[KernelCall]:
        if self._marks is None:
            return [{}] * many
        torch.cuda.synchronize(self._marks.device)
        calls = kernel_calls(self._marks)
        self.clear()
        if len(calls) != many:
            raise CommError(f"{many} calls were made, but {len(calls)} have marks of their beginning and their end")
        return calls


class Phases:
    """One call, made by all ranks under a plan that may leave no choice; a twin keeps the ranks' exchanges apart."""

    def __init__(self, comm: Communicator, job: Job, symmetric: bool) -> None:
        comm.resources.stamp(0)  # raises where there is no native code
        twin = twin_of(comm)
        self.comm, self.job, self.twin = comm, job, twin
        ((self.collective, self.call),) = calls(comm, job)
        self.room = ROOM
        self.placement = "symmetric" if symmetric else "plain"
        (name,) = job.algorithms
        plan = comm.plan if name == "auto" else Plan.only({self.collective.name: name}, base=comm.plan)
        twin.use(plan)
        asked = self.collective.name, self.collective.num_bytes(self.call), self.call.dtype, self.call.redop
        self.why = twin.explain(*asked, placement=self.placement, mode=job.mode)
        empty = twin.empty if symmetric else plain_on(comm.device)
        in_place = forms(job, self.collective)[0]
        self._candidate = Candidate(self.why.algorithm, public_call(twin, self.collective), in_place, empty)

    def run(self) -> Measured:
        """Check a call's values, then make it without and with stamps, in turns."""
        job, on_gpu = self.job, self.comm.device.type == "cuda"
        protocol = replace(job.protocol, budget_s=job.seconds / 4)
        (checked,) = measure(self.comm, self.collective, self.call, ordered, [self._candidate], protocol)
        if checked.skipped:
            raise Unsupported(f"{self.why.algorithm} cannot make this call: {checked.skipped}")
        pairs = [buffers_of(self.collective, self.call, self._candidate) for _ in range(protocol.buffers)]
        for x, _ in pairs:
            x.zero_()
        runs = cycle([self._candidate.prepare(x, out, self.call) for x, out in pairs])
        make = self._replayed if protocol.graph else self._waited_for if on_gpu else self._in_a_row
        wanted = int(job.seconds / 2 / (2 * BLOCKS * checked.median_s))
        with undisturbed():
            measured = make(runs, max(MIN_CALLS, min(MAX_CALLS, wanted)))
        self.comm.barrier()
        return Measured(*measured, checked.wrong)

    def _in_a_row(self, runs: Iterator[Run], wanted: int) -> Times:
        stamps = self._stamp(True)
        clocked(list(islice(runs, MIN_CALLS)))
        of_call = 2 * -(-int(stamps[0]) // MIN_CALLS)  # waits that are answered at once have fewer
        many = self._fewest(min(wanted, ROOM // of_call - LEAD_IN))
        self.room = of_call * (LEAD_IN + many)  # no more, as memory that is touched for the first time is slow
        blocks, plain_ns = list[tuple[torch.Tensor, list[int]]](), list[float]()
        for _ in range(BLOCKS):
            for stamped in (False, True):
                stamps = self._stamp(stamped)
                self.comm.barrier()
                bounds = clocked(list(islice(runs, LEAD_IN + many)))
                if stamped:
                    blocks.append((stamps, bounds))
                else:
                    plain_ns += [end - start for start, end in pairwise(bounds[LEAD_IN:])]
        self._stamp(False)
        spans = [of_call for block in blocks for of_call in host_spans(*block)[LEAD_IN:]]
        look_ns = cost_of_clock()
        return list(_traced(spans, look_ns)), [ns - look_ns for ns in plain_ns]

    def _waited_for(self, runs: Iterator[Run], wanted: int) -> Times:
        """Return calls on GPUs of which each is waited for before the next one."""
        waited: list[tuple[Spans, KernelCall, float, float]] = []
        plain_ns: list[float] = []
        for _ in range(BLOCKS):
            for stamped in (False, True):
                stamps, kernels = self._prepared(runs, stamped)
                bounds = self._clocked_to_the_end(runs, min(wanted, WAITED_FOR, kernels.room))
                starts, ends = bounds[::3], bounds[2::3]
                if stamped:
                    waited += zip(host_spans(stamps, bounds)[::3], kernels.calls(len(ends)), starts, ends, strict=True)
                else:
                    plain_ns += [end - start for start, end in zip(starts, ends, strict=True)]
        self._stamp(False)
        look_ns = cost_of_clock()
        shift_ns = min((end - ended(call) for _, call, _, end in waited if call), default=0.0)
        traced_calls = []
        hosts = _traced([spans for spans, *_ in waited], look_ns)
        for traced, (spans, call, start, end) in zip(hosts, waited, strict=True):
            kernel = kernel_durations(call, began(call)) if call else {}
            kernel[GAP if call else DEVICE] = end - start - traced.call_ns - sum(kernel.values())
            parts = {**traced.parts, **{(GPU, phase): ns for phase, ns in kernel.items()}}
            traced_calls.append(Traced(end - start, parts, spans, call, shift_ns))
        return traced_calls, [ns - look_ns for ns in plain_ns]

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

    def _replayed(self, runs: Iterator[Run], wanted: int) -> Times:
        """Return calls of a replayed graph; one begins when the one before has ended."""
        traced_calls, plain_ns = list[Traced](), list[float]()
        with graph.separate_stream(self.comm.device):
            starter = graph.Starter(self.comm)
            _, kernels = self._prepared(runs, True)
            many = min(wanted, kernels.room)
            marked = graph.captured(list(islice(runs, many)))
            self._prepared(runs, False)
            plain = graph.captured(list(islice(runs, many)))
            starter.time(marked)
            kernels.clear()
            for _ in range(2 * BLOCKS):
                plain_ns.append(starter.time(plain) / many * 1e9)
                call_ns = starter.time(marked) / many * 1e9
                end_ns = time.perf_counter_ns()
                traced_calls += of_replay(kernels.calls(many), call_ns, end_ns)
            marked.reset()
            plain.reset()
            starter.close()
        return traced_calls, plain_ns

    def _prepared(self, runs: Iterator[Run], stamped: bool) -> tuple[torch.Tensor, Kernels]:
        """Load the kernels with marks or without, and see how many a call makes."""
        stamps = self._stamp(stamped)
        clocked(list(islice(runs, MIN_CALLS)))
        torch.cuda.synchronize(self.comm.device)
        group: Any = self.twin.resources.native_group
        kernels = Kernels(group.marks(), MIN_CALLS)
        kernels.room = self._fewest(kernels.room)
        kernels.clear()
        return stamps, kernels

    def _stamp(self, stamped: bool) -> torch.Tensor:
        made = self.twin.resources.stamp(self.room if stamped else 0)
        return torch.empty(0) if made is None else made

    def _fewest(self, number: int) -> int:
        return max(1, min(self.comm.all_gather_object(number)))


def of_replay(calls: Sequence[KernelCall], call_ns: float, end_ns: float) -> Iterator[Traced]:
    """Yield the calls of a replay that was over, for the host, at `end_ns`; without marks, one for all.

    A call begins when the one before it has ended. The first has none before it, and is left out unless it is alone.
    """
    if not calls[0]:
        yield Traced(call_ns, {(GPU, DEVICE): call_ns})
        return
    behind = list(zip(map(ended, calls), calls[1:], strict=False))
    for low, call in behind or [(began(calls[0]), calls[0])]:
        parts = {(GPU, phase): ns for phase, ns in kernel_durations(call, low).items()}
        yield Traced(call_ns, parts, kernel=call, shift_ns=end_ns - ended(calls[-1]))


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
    nothing: list[Run] = [lambda: None] * LOOKS
    looks = []
    for _ in range(TRIES):
        bounds = clocked(nothing)
        start = time.perf_counter_ns()
        for run in nothing:
            run()
        looks.append((bounds[-1] - bounds[0] - (time.perf_counter_ns() - start)) / LOOKS)
    return median(looks)


def _traced(calls: Sequence[Spans], clock_ns: float) -> Iterator[Traced]:
    """Yield calls of the host's phases, without what their stamps take: each is in the span that it ends."""
    stamp_ns = median(min(span.ns for span in spans) for spans in calls)  # there nothing is done but a stamp
    for spans in calls:
        parts: Parts = {}
        for span, ns in zip(spans, [stamp_ns] * (len(spans) - 1) + [clock_ns], strict=True):
            key = HOST, span.phase
            parts[key] = parts.get(key, 0.0) + max(span.ns - ns, 0.0)
        yield Traced(spans[-1].end_ns - spans[0].start_ns, parts, spans)
