"""The cases of `commlib profile`: bytes, sets of inputs, and candidates whose values are told right from wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from commlib.cli.profile.external import External
from commlib.peers.kernels import load, measure
from commlib.peers.kernels import sets as sets_module
from commlib.peers.kernels.case import FLOOR, OURS, Candidate, Case, Inputs
from commlib.peers.kernels.compiled import Compiler
from commlib.peers.kernels.index import Gather
from commlib.peers.kernels.measure import Group, Line, Settings, measure_case
from commlib.peers.kernels.metadata import Lengths
from commlib.peers.kernels.store import Scatter
from commlib.timing import Measurement, Protocol

CPU = torch.device("cpu")
BF16, INT32 = torch.bfloat16, torch.int32
CASES = [
    Case("index", 9, 40, BF16),
    Case("index", 1, 40, torch.float32, "zipf"),
    Case("index", 9, 40, BF16, "sequential", "masked"),
    Case("index", 1, 40, BF16, variant="masked"),
    Case("store", 9, 40, BF16, "zipf"),
    Case("store", 9, 40, torch.float16, variant="fp8"),
    Case("metadata", 1, 8, INT32),
    Case("metadata", 19, 8, INT32),
]


@pytest.fixture(autouse=True)
def small_tables() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sets_module, "CPU_SHARED_BYTES", 1 << 16)
        yield


@pytest.fixture
def eagerly_compiled(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Compile nothing: what would be compiled is called as it is."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    return Compiler()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_candidate_is_right_on_every_set(case: Case, eagerly_compiled: Compiler) -> None:
    kernel = load(case.kernel)
    sets = kernel.inputs(case, 3, CPU)
    candidates = kernel.candidates(case, eagerly_compiled)
    ours = ["commlib", "commlib unique"] if case.kernel == "store" else ["commlib"]
    assert [each.label for each in candidates if each.role == OURS] == ours
    assert "torch.compile" in {each.label for each in candidates if each.prepare is not None}
    for candidate in candidates:
        if candidate.prepare is None:
            assert candidate.reason
            continue
        for inputs in sets:
            inputs.poison()
            returned = candidate.prepare(inputs)()
            assert candidate.role == FLOOR or inputs.wrong(returned) == 0, candidate.label


@pytest.mark.parametrize("case", CASES, ids=str)
def test_poison_is_wrong_and_a_copy_moves_as_many_bytes(case: Case) -> None:
    kernel = load(case.kernel)
    for inputs in kernel.inputs(case, 2, CPU):
        inputs.poison()
        assert inputs.wrong(None) > 0
        assert inputs.source.nbytes == inputs.target.nbytes
        # Half is read, half is written; a row more or less where halves are no whole elements.
        assert 2 * inputs.source.nbytes == pytest.approx(kernel.num_bytes(case), abs=2 * inputs.source.itemsize)
        assert inputs.source.data_ptr() != inputs.target.data_ptr()


@pytest.mark.parametrize(
    ("case", "num_bytes"),
    [
        (Case("index", 16, 4096, BF16), 2 * 16 * 8192),
        (Case("index", 16, 4096, BF16, variant="masked"), (4 + 16) * 8192),
        (Case("index", 1, 8, torch.float32), 64),
        (Case("store", 32, 128, BF16), 2 * 2 * 32 * 256),
        (Case("store", 32, 128, BF16, variant="fp8"), 2 * 32 * 128 * 3),
        (Case("metadata", 16, 8, INT32), 4 * (32 + 4 * 72 + 17 + 1)),
        (Case("metadata", 3, 8, INT32), 4 * (6 + 4 * 6 + 4 + 1)),
    ],
    ids=str,
)
def test_bytes_are_those_read_and_those_written(case: Case, num_bytes: int) -> None:
    assert load(case.kernel).num_bytes(case) == num_bytes


def test_a_store_into_another_slot_is_wrong() -> None:
    (inputs,) = load("store").inputs(Case("store", 4, 16, BF16), 1, CPU)
    assert isinstance(inputs, Scatter)
    inputs.poison()
    inputs.k_cache[inputs.slots], inputs.v_cache[inputs.slots] = inputs.k, inputs.v
    assert inputs.wrong(None) == 0
    stray = next(slot for slot in range(len(inputs.k_cache)) if slot not in inputs.slots.tolist())
    inputs.v_cache[stray, 3] = 1.0
    assert inputs.wrong(None) == 1


@pytest.mark.parametrize("n", [1, 4, 9])
def test_a_quarter_of_masked_ids_is_in_the_shard(n: int) -> None:
    for inputs in load("index").inputs(Case("index", n, 16, BF16, variant="masked"), 3, CPU):
        assert isinstance(inputs, Gather)
        local = inputs.ids - inputs.start
        assert int(((local >= 0) & (local < inputs.length)).sum()) == -(-n // 4)
        assert int(inputs.ids.max()) < 4 * inputs.length


def test_requests_of_all_sets_have_as_many_tokens() -> None:
    sets = load("metadata").inputs(Case("metadata", 21, 8, INT32), 3, CPU)
    assert all(isinstance(inputs, Lengths) for inputs in sets)
    assert {int(inputs.extend_lens.sum()) for inputs in sets} == {sets[0].tokens}
    assert len({tuple(inputs.extend_lens.tolist()) for inputs in sets}) == 3


def test_sets_fill_twice_the_cache_where_they_may() -> None:
    cold = sets_module.cold_bytes(CPU)
    assert sets_module.sets_for(1 << 30, CPU, hot=True) == 1
    assert sets_module.sets_for(cold // 16, CPU, hot=False) == 16
    assert sets_module.sets_for(16, CPU, hot=False) == sets_module.MOST_SETS
    assert sets_module.sets_for(cold, CPU, hot=False) == sets_module.LEAST_SETS
    assert sets_module.sets_for(1 << 40, CPU, hot=False) == 1  # more than there is room for


def measured(candidates: list[Candidate], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(load("index"), "candidates", lambda case, compiled: candidates)
    monkeypatch.setattr(sets_module, "MOST_SETS", 4)
    case = Case("index", 2, 16, BF16)
    group = measure_case(case, Settings(CPU, compiler=Compiler("off")), 0.05)
    return {line.candidate.label: line for line in group.lines}


def test_a_first_call_that_takes_too_long_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commlib.peers.kernels.measure.FIRST_CALL_S", 0.05)
    asleep = Candidate("asleep", lambda inputs: lambda: time.sleep(30), compiles=True)
    awake = Candidate("awake", lambda inputs: lambda: inputs.weights[inputs.ids])
    lines = measured([asleep, awake], monkeypatch)
    assert "its first call took more than 0.05 s" in lines["asleep"].skipped
    assert lines["asleep"].eager is None
    assert (lines["awake"].skipped, lines["awake"].wrong) == ("", 0)
    assert lines["awake"].eager.times_s


def test_values_are_compared_again_after_the_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def tired(inputs: Gather) -> Callable[[], object]:
        def run() -> object:
            calls.append(1)
            return inputs.weights[inputs.ids] if len(calls) < 12 else inputs.out

        return run

    assert measured([Candidate("tired", tired)], monkeypatch)["tired"].wrong == 2 * 16


def test_what_is_reported_holds_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = measured([Candidate("torch", lambda inputs: lambda: inputs.weights[inputs.ids])], monkeypatch)
    assert (lines["torch"].candidate.prepare, lines["torch"].runs) == (None, [])


PEER = """
def candidates(kernel, case, inputs):
    if kernel != "index":
        raise LookupError("index only")
    return {
        "theirs": lambda: inputs.out.copy_(inputs.weights[inputs.ids]),
        "probe": lambda: None,
        "not here": "needs a compiler",
    }
"""


def sets_of(case: Case) -> list[Inputs]:
    return list(load(case.kernel).inputs(case, 2, CPU))


def test_a_file_adds_peers_floors_and_reasons(tmp_path: Path) -> None:
    path = tmp_path / "others.py"
    path.write_text(PEER)
    case = Case("index", 3, 16, BF16)
    sets = sets_of(case)
    theirs, probe, absent = External(path)("index", case, sets)
    assert [each.role for each in (theirs, probe, absent)] == ["peer", FLOOR, "peer"]
    assert (absent.prepare, absent.reason) == (None, "needs a compiler")
    assert theirs.prepare is not None
    for inputs in sets:
        inputs.poison()
        assert inputs.wrong(theirs.prepare(inputs)()) == 0
    (failed,) = External(path)("store", Case("store", 3, 16, BF16), [])
    assert failed.reason


@pytest.mark.parametrize(("text", "said"), [("candidate = 1", "no function candidates"), ("1 / 0", "ZeroDivision")])
def test_a_file_that_is_no_peer_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "others.py"
    path.write_text(text)
    with pytest.raises(click.UsageError, match=said):
        External(path)


@pytest.mark.parametrize(
    ("n", "hot", "sets", "calls"), [(1, True, 1, 96), (1, False, 7, 98), (4096, False, 3, 24), (4096, False, 7, 28)]
)
def test_a_graph_has_many_calls_and_each_set_as_often(
    monkeypatch: pytest.MonkeyPatch, n: int, hot: bool, sets: int, calls: int
) -> None:
    asked: list[Protocol] = []

    def pretended(device: torch.device, runs: Any, protocol: Protocol, name: str) -> list[Measurement]:
        asked.append(protocol)
        return [Measurement(label, False) for label in runs]

    monkeypatch.setattr(measure, "measure_alone", pretended)
    case = Case("index", n, 4096, BF16, hot=hot)
    lines = [Line(Candidate("a")), Line(Candidate("a"))]  # a label may be taken
    group = Group(case, load("index").num_bytes(case), sets, True, lines)
    measure._replay(lines, group, Settings(CPU, flush=True), 1.0)
    assert (asked[0].graph, asked[0].iterations, asked[0].blocks[0] >= 20) == (True, calls, True)
    assert (asked[0].lead_in is None) == hot
    assert all(line.timed is not None for line in lines)
