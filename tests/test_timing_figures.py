"""Who is called how often without ranks, and which settings a document has."""

import gc
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch

from commlib.errors import CommError
from commlib.tools.report.document import environment
from commlib.tools.timing import Protocol, Run, SingleDevice, graph, measure_calls


def test_of_the_environment_only_what_changes_a_figure_is_kept() -> None:
    kept = {"NCCL_ALGO": "Ring", "CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "1", "COMMLIB_ISA": "v3"}
    places = {"NCCL_TOPO_FILE": "/somewhere/topo.xml", "COMMLIB_PLAN": "plan.json", "NCCL_COMM_ID": "box:1234"}
    left_out = {"NCCL_API_KEY": "a", "CUDA_TOKEN": "b", "COMMLIB_JOB": "0", "HOME": "c", "AWS_SECRET": "d"}
    found = environment({**kept, **places, **left_out})
    assert found == kept


CPU = torch.device("cpu")


class Recorder:
    """Calls that note which candidate was called on which set."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def runs(self, label: str, sets: int) -> list[Run]:
        return [lambda at=at: self.calls.append((label, at)) for at in range(sets)]


def test_blocks_of_candidates_alternate_and_sets_rotate() -> None:
    recorder = Recorder()
    calls = {"a": recorder.runs("a", 3), "b": recorder.runs("b", 3)}
    protocol = Protocol(blocks=(6, 6), budget_s=0.0, iterations=3)
    found = measure_calls(SingleDevice(CPU), calls, protocol, "case")
    assert [(each.label, each.iterations, len(each.times_s)) for each in found] == [("a", 3, 6), ("b", 3, 6)]
    assert all(len(each.issue_s) == 6 for each in found)
    assert all(issue <= time for each in found for issue, time in zip(each.issue_s, each.times_s, strict=True))
    led = 3 + 4 * 3  # each block is led in by four times as many calls
    timed = recorder.calls[-2 * 6 * led :]
    blocks = [timed[at : at + led] for at in range(0, len(timed), led)]
    assert all(len({label for label, _ in block}) == 1 for block in blocks)
    assert all(
        {at for _, at in block[first : first + 3]} == {0, 1, 2} for block in blocks for first in range(0, led, 3)
    )
    order = [block[0][0] for block in blocks]
    assert all(set(order[at : at + 2]) == {"a", "b"} for at in range(0, 12, 2))
    assert order != ["a", "b"] * 6


@pytest.mark.parametrize("on", [True, False])
def test_the_garbage_collector_is_off_while_calls_are_timed_and_then_as_it_was(on: bool) -> None:
    seen: list[bool] = []
    (gc.enable if on else gc.disable)()
    measure_calls(SingleDevice(CPU), {"a": [lambda: seen.append(gc.isenabled())]}, Protocol(budget_s=0.0), "case")
    after = gc.isenabled()
    gc.enable()
    assert (set(seen), after) == ({False}, on)


def test_a_block_goes_on_with_the_set_after_the_last_ones() -> None:
    recorder = Recorder()
    measure_calls(
        SingleDevice(CPU), {"a": recorder.runs("a", 3)}, Protocol(blocks=(6, 6), budget_s=0.0, iterations=2), "case"
    )
    sets = [at for _, at in recorder.calls]
    assert all(after == (at + 1) % 3 for at, after in pairwise(sets))


class Pretended:
    """A graph that makes its calls when it is replayed, and what replays it."""

    lead_ins: ClassVar[list[Run | None]] = []

    def __init__(self, world: Any, lead_in: Run | None = None) -> None:
        Pretended.lead_ins.append(lead_in)

    def time(self, runs: Sequence[Run]) -> float:
        for run in runs:
            run()
        return 1e-6 * len(runs)

    def close(self) -> None:
        pass


class Runs(list[Run]):
    def reset(self) -> None:
        pass


def test_a_graph_has_all_sets_in_turn_and_counts_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def captured(runs: Sequence[Run]) -> Runs:
        if runs[0] in refused:
            raise CommError("cannot be captured: it waits for the host")
        return Runs(runs)

    monkeypatch.setattr(graph, "Starter", Pretended)
    monkeypatch.setattr(graph, "captured", captured)
    recorder = Recorder()
    refused = recorder.runs("b", 5)
    protocol = Protocol(blocks=(4, 4), budget_s=0.0, iterations=10, warmup=0, graph=True, lead_in=str)
    a, b = measure_calls(SingleDevice(CPU), {"a": recorder.runs("a", 5), "b": refused}, protocol, "case")
    assert Pretended.lead_ins == [str]
    assert a.times_s == pytest.approx([1e-6] * 4)
    assert (a.iterations, a.issue_s) == (10, [])  # the host's part of a replay is nobody's figure
    replays = [recorder.calls[at : at + 10] for at in range(len(recorder.calls) - 40, len(recorder.calls), 10)]
    assert all(sorted(calls) == [("a", at) for at in range(5) for _ in range(2)] for calls in replays)
    assert (b.times_s, b.skipped) == ([], "cannot be captured: it waits for the host")
