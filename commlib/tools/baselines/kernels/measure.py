"""One case, measured: make the sets | check every candidate | replay graphs in turns | call in turns."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from commlib.errors import one_line
from commlib.tools.baselines.kernels.case import (
    FLOOR,
    Baseline,
    Candidate,
    Case,
    Inputs,
    cold_bytes,
    sets_for,
)
from commlib.tools.timing import Measurement, Protocol, Run, measure_on_one_device, separate_stream

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


def measure_case(case: Case, settings: Settings, budget_s: float) -> tuple[int, list[Candidate]]:
    """Measure all candidates of a case for about so long, besides what preparing takes; return how many sets rotate."""
    device = settings.device
    with torch.no_grad(), separate_stream(device) if settings.on_gpu else nullcontext():
        sets = case.inputs(sets_for(case, device), device)
        candidates = [*case.candidates(), *(each for of in settings.baselines for each in of.candidates(case, sets))]
        for candidate in candidates:
            _prepare(candidate, sets)
        ready = [candidate for candidate in candidates if not candidate.skipped]
        if settings.on_gpu:
            budget_s /= 2
            _replay(case, [candidate for candidate in ready if candidate.graph], len(sets), settings, budget_s)
        calls = Protocol(blocks=EAGER_BLOCKS, budget_s=budget_s, iterations=sets[0].iterations, seed=settings.seed)
        for candidate, result in _timed(case, ready, calls, settings):
            candidate.eager = result
            if not settings.on_gpu:
                candidate.timed = result
            _check(candidate, sets[:1])
    # The next case needs the memory: what is reported holds no tensors.
    for candidate in candidates:
        candidate.runs, candidate.prepare = (), None
    rotating = len(sets)
    del sets
    if settings.on_gpu:
        torch.cuda.empty_cache()  # graphs had pools of their own
    return rotating, candidates


def _prepare(candidate: Candidate, sets: Sequence[Inputs]) -> None:
    """Make the calls of a candidate ready and compare their values; what it raises is why it is left out."""
    if candidate.prepare is None:
        return
    started = time.perf_counter()
    try:
        with _no_longer_than(FIRST_CALL_S):
            candidate.runs = [candidate.prepare(inputs) for inputs in sets]
            candidate.runs[0]()
            _wait(sets[0])
        if candidate.took is not None:
            candidate.took(time.perf_counter() - started)
        _check(candidate, sets[:: max(1, len(sets) // CHECKED_SETS)])
    except Exception as error:
        candidate.skipped = one_line(error)


def _check(candidate: Candidate, sets: Sequence[Inputs]) -> None:
    """Make a call on some sets, each with poisoned outputs, and add up the wrong elements."""
    if candidate.role == FLOOR:
        return
    step = max(1, len(candidate.runs) // CHECKED_SETS)
    for inputs, run in zip(sets, candidate.runs[::step], strict=False):
        inputs.poison()
        returned = run()
        _wait(inputs)
        wrong, error = inputs.check(returned)
        candidate.wrong = (candidate.wrong or 0) + wrong
        candidate.error = error if candidate.error is None else max(candidate.error, error or 0.0)
        inputs.result = None


def _wait(inputs: Inputs) -> None:
    if inputs.source.is_cuda:
        torch.cuda.synchronize(inputs.source.device)


def _replay(case: Case, candidates: list[Candidate], sets: int, settings: Settings, budget_s: float) -> None:
    """Time replays of graphs with one call after the other, all sets in turn."""
    calls = MANY_CALLS if case.num_bytes <= MANY_BYTES else FEW_CALLS
    protocol = Protocol(
        blocks=GRAPH_BLOCKS,
        budget_s=budget_s,
        iterations=-(-calls // sets) * sets,
        seed=settings.seed,
        graph=True,
        lead_in=_flush(settings) if settings.flush and not case.hot else None,
    )
    for candidate, result in _timed(case, candidates, protocol, settings):
        candidate.timed, candidate.skipped = (None if result.skipped else result), result.skipped


def _timed(
    case: Case, candidates: list[Candidate], protocol: Protocol, settings: Settings
) -> Iterator[tuple[Candidate, Measurement]]:
    # By place: a file of yours may give a candidate a label that is taken.
    runs = {f"{at} {candidate.label}": candidate.runs for at, candidate in enumerate(candidates)}
    return zip(candidates, measure_on_one_device(settings.device, runs, protocol, str(case)), strict=True)


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
