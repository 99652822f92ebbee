"""One case, measured: make the sets | check every candidate | replay graphs in turns | call in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from commlib.errors import one_line
from commlib.tools.baselines.kernels.case import FLOOR, PEER, PROBES, Candidate, Case, Inputs, cold_bytes, sets_for
from commlib.tools.timing import Measurement, Protocol, Run, SingleDevice, measure_calls, separate_stream

FEW_CALLS, MANY_CALLS = 24, 96  # of a graph; many where they are short
MANY_BYTES = 16 << 20  # up to here calls are short
GRAPH_BLOCKS, EAGER_BLOCKS = (21, 61), (5, 25)
CHECKED_SETS = 3


def measure_case(
    case: Case, device: torch.device, files: Mapping[str, Any], budget_s: float
) -> tuple[int, list[Candidate]]:
    """Measure all candidates of a case for about so long, besides what preparing takes; return how many sets rotate.

    `files` has functions candidates(kernel, case, inputs) by their names.
    """
    on_gpu = device.type == "cuda"
    with torch.no_grad(), separate_stream(device) if on_gpu else nullcontext():
        sets = case.inputs(sets_for(case, device), device)
        candidates = case.candidates()
        for name, function in files.items():
            candidates += _of_file(name, function, case, sets)
        for candidate in candidates:
            _prepare(candidate, sets)
        ready = [candidate for candidate in candidates if not candidate.skipped]
        if on_gpu:
            budget_s /= 2
            _replay(case, ready, len(sets), device, budget_s)
        calls = Protocol(blocks=EAGER_BLOCKS, budget_s=budget_s)
        for candidate, result in _timed(case, ready, calls, device):
            candidate.eager = result
            if not on_gpu:
                candidate.timed = result
            _check(candidate, sets[:1])
    # The next case needs the memory: what is reported holds no tensors.
    for candidate in candidates:
        candidate.runs, candidate.prepare = (), None
    rotating = len(sets)
    del sets
    if on_gpu:
        torch.cuda.empty_cache()  # graphs had pools of their own
    return rotating, candidates


def _of_file(name: str, function: Any, case: Case, sets: Sequence[Inputs]) -> list[Candidate]:
    """Return a candidate for each label of a file's function; what it raises is one line without times."""
    try:
        made = [dict(function(case.kernel, case, inputs)) for inputs in sets]
        calls = {label: [of_set[label] for of_set in made] for label in made[0]}
    except Exception as error:
        return [Candidate.missing(name, one_line(error))]
    candidates = []
    for label, of_label in calls.items():
        role = FLOOR if label.startswith(PROBES) else PEER
        reason = of_label[0] if isinstance(of_label[0], str) else ""
        candidates.append(Candidate(label, None, role, reason, runs=of_label))
    return candidates


def _prepare(candidate: Candidate, sets: Sequence[Inputs]) -> None:
    """Make the calls of a candidate ready and compare their values; what it raises is why it is left out."""
    if candidate.compiles:
        candidate.skipped = "" if sets[0].source.is_cuda else "takes long on the CPU"
        torch._dynamo.reset()  # a function is compiled for eight shapes, and then, silently, no more
    if candidate.skipped:
        return
    try:
        if candidate.prepare is not None:
            candidate.runs = [candidate.prepare(inputs) for inputs in sets]
        candidate.runs[0]()
        _wait(sets[0])
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


def _replay(case: Case, candidates: list[Candidate], sets: int, device: torch.device, budget_s: float) -> None:
    """Time replays of graphs with one call after the other, all sets in turn."""
    calls = MANY_CALLS if case.num_bytes <= MANY_BYTES else FEW_CALLS
    protocol = Protocol(
        blocks=GRAPH_BLOCKS,
        budget_s=budget_s,
        iterations=-(-calls // sets) * sets,
        graph=True,
        lead_in=_flush(case, sets, device),
    )
    for candidate, result in _timed(case, candidates, protocol, device):
        candidate.timed, candidate.skipped = (None if result.skipped else result), result.skipped


def _timed(
    case: Case, candidates: list[Candidate], protocol: Protocol, device: torch.device
) -> Iterator[tuple[Candidate, Measurement]]:
    # By place: a file of yours may give a candidate a label that is taken.
    runs = {f"{at} {candidate.label}": candidate.runs for at, candidate in enumerate(candidates)}
    return zip(candidates, measure_calls(SingleDevice(device), runs, protocol, str(case)), strict=True)


def _flush(case: Case, sets: int, device: torch.device) -> Run | None:
    """Return what empties the cache before a replay, for cold cases whose sets together fit into it."""
    if case.hot or sets * case.num_bytes >= cold_bytes(device):
        return None
    # Read, not written: what is written would be written back in the time of others.
    return torch.ones(cold_bytes(device) // 4, dtype=torch.int32, device=device).sum
