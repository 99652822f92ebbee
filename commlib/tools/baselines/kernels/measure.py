"""One case, measured: make the sets | check every candidate | replay graphs in turns | call in turns."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch

from commlib.errors import one_line
from commlib.tools.baselines.kernels.case import (
    FLOOR,
    OURS,
    PEER,
    Baseline,
    Candidate,
    Case,
    Inputs,
    cold_bytes,
    sets_for,
)
from commlib.tools.timing import Measurement, Protocol, Run, measure_alone, own_stream

FEW_CALLS, MANY_CALLS = 24, 96  # of a graph; many where they are short
MANY_BYTES = 16 << 20  # up to here calls are short
GRAPH_BLOCKS, EAGER_BLOCKS = (21, 61), (5, 25)
FIRST_CALL_S = 90.0  # a candidate that takes longer to compile is left out
CHECKED_SETS = 3


@dataclass
class Settings:
    """How everything is measured, and next to which baselines; the same for all cases of a run."""

    device: torch.device
    seed: int = 0
    flush: bool = False  # read twice the cache before each replay: cold also where sets are small
    baselines: Sequence[Baseline] = ()

    @property
    def on_gpu(self) -> bool:
        """Whether graphs are replayed on a GPU; else calls are made on the CPU."""
        return self.device.type == "cuda"


@dataclass
class Line:
    """One candidate of a case, and its measurements."""

    candidate: Candidate
    runs: list[Run] = field(default_factory=list)
    wrong: int | None = None
    skipped: str = ""
    timed: Measurement | None = None  # what its figure is of
    eager: Measurement | None = None  # calls of the host
    error: float | None = None  # the largest that the inputs report, where they do


@dataclass
class Group:
    """All lines of one case, measured together on the same sets."""

    case: Case
    sets: int
    replays: bool  # figures are of replayed graphs; else they are of calls
    lines: list[Line]

    def ours(self) -> Line | None:
        """Return the first line of ours that has a figure."""
        return next((line for line in self.lines if line.candidate.role == OURS and line.timed), None)

    def best_peer(self) -> Line | None:
        """Return the fastest of the others whose values are right."""
        peers = [line for line in self.lines if line.candidate.role == PEER and not line.wrong]
        return min(peers, key=lambda line: line.timed.median_s if line.timed else math.inf, default=None)


def measure_case(case: Case, settings: Settings, budget_s: float) -> Group:
    """Measure all candidates of a case for about so long, besides what preparing takes."""
    device = settings.device
    with torch.no_grad(), own_stream(device) if settings.on_gpu else nullcontext():
        sets = case.inputs(sets_for(case, device), device)
        lines = [_prepared(each, sets) for each in case.candidates()]
        for baseline in settings.baselines:
            lines += [_prepared(each, sets, baseline) for each in baseline.candidates(case, sets)]
        group = Group(case, len(sets), settings.on_gpu, lines)
        ready = [line for line in lines if not line.skipped]
        if settings.on_gpu:
            budget_s /= 2
            _replay([line for line in ready if line.candidate.graph], group, settings, budget_s)
        calls = Protocol(blocks=EAGER_BLOCKS, budget_s=budget_s, iterations=sets[0].iterations, seed=settings.seed)
        for line, result in _timed(ready, calls, group, settings):
            line.eager = result
            if not group.replays:
                line.timed = result
            _check(line, sets[:1])
    # The next case needs the memory: what is reported holds no tensors.
    for line in lines:
        line.runs, line.candidate = [], replace(line.candidate, prepare=None)
    del sets
    if settings.on_gpu:
        torch.cuda.empty_cache()  # graphs had pools of their own
    return group


def _prepared(candidate: Candidate, sets: Sequence[Inputs], baseline: Baseline | None = None) -> Line:
    """Make the calls of a candidate ready and compare their values; what it raises is why it is left out."""
    line = Line(candidate, skipped=candidate.reason)
    if candidate.prepare is None:
        return line
    started = time.perf_counter()
    try:
        with _no_longer_than(FIRST_CALL_S):
            line.runs = [candidate.prepare(inputs) for inputs in sets]
            line.runs[0]()
            _wait(sets[0])
        if candidate.compiles and baseline is not None:
            baseline.took(time.perf_counter() - started)
        _check(line, sets[:: max(1, len(sets) // CHECKED_SETS)])
    except Exception as error:
        line.skipped = one_line(error)
    return line


def _check(line: Line, sets: Sequence[Inputs]) -> None:
    """Make a call on some sets, each with poisoned outputs, and add up the wrong elements."""
    if line.candidate.role == FLOOR:
        return
    step = max(1, len(line.runs) // CHECKED_SETS)
    for inputs, run in zip(sets, line.runs[::step], strict=False):
        inputs.poison()
        returned = run()
        _wait(inputs)
        wrong, error = inputs.check(returned)
        line.wrong = (line.wrong or 0) + wrong
        line.error = error if line.error is None else max(line.error, error or 0.0)
        inputs.result = None


def _wait(inputs: Inputs) -> None:
    if inputs.source.is_cuda:
        torch.cuda.synchronize(inputs.source.device)


def _replay(lines: list[Line], group: Group, settings: Settings, budget_s: float) -> None:
    """Time replays of graphs with one call after the other, all sets in turn."""
    calls = MANY_CALLS if group.case.num_bytes <= MANY_BYTES else FEW_CALLS
    protocol = Protocol(
        blocks=GRAPH_BLOCKS,
        budget_s=budget_s,
        iterations=-(-calls // group.sets) * group.sets,
        seed=settings.seed,
        graph=True,
        lead_in=_flush(settings) if settings.flush and not group.case.hot else None,
    )
    for line, result in _timed(lines, protocol, group, settings):
        line.timed, line.skipped = (None if result.skipped else result), result.skipped


def _timed(
    lines: list[Line], protocol: Protocol, group: Group, settings: Settings
) -> Iterator[tuple[Line, Measurement]]:
    # By place: a file of yours may give a candidate a label that is taken.
    runs = {f"{at} {line.candidate.label}": line.runs for at, line in enumerate(lines)}
    return zip(lines, measure_alone(settings.device, runs, protocol, str(group.case)), strict=True)


def _flush(settings: Settings) -> Run:
    # Read, not written: what is written would be written back in the time of others.
    buffer = torch.ones(cold_bytes(settings.device) // 4, dtype=torch.int32, device=settings.device)
    return buffer.sum


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer, where signals can: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> Any:
        raise TimeoutError(f"its first call took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
