"""The cases of `commlib profile` and its report: bytes, values told right from wrong, figures."""

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from commlib.tools.baselines.kernels import load, once
from commlib.tools.baselines.kernels import sets as sets_module
from commlib.tools.baselines.kernels.attention import AttentionCase
from commlib.tools.baselines.kernels.case import FLOOR, OURS, PEER, Candidate, Case
from commlib.tools.baselines.kernels.compiled import Compiler
from commlib.tools.baselines.kernels.index import Gather
from commlib.tools.baselines.kernels.measure import Group, Line, Settings, measure_case
from commlib.tools.cli.profile.external import External
from commlib.tools.cli.profile.job import Job
from commlib.tools.cli.profile.report import ProfileReport
from commlib.tools.cli.profile.view import ProfileView
from commlib.tools.timing import Measurement
from tests.cli.calls import exit_code, written

SCHEMA = "cli/profile/schema.json"
CPU, GPU = torch.device("cpu"), torch.device("cuda")
BF16, INT32 = torch.bfloat16, torch.int32


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets_module, "CPU_SHARED_BYTES", 1 << 16)


def test_bytes_are_those_read_and_those_written() -> None:
    for case, num_bytes in [
        (Case("index", 16, 4096, BF16), 2 * 16 * 8192),
        (Case("index", 16, 4096, BF16, variant="masked"), (4 + 16) * 8192),
        (Case("store", 32, 128, BF16), 2 * 2 * 32 * 256),
        (Case("store", 32, 128, BF16, variant="fp8"), 2 * 32 * 128 * 3),
        (Case("metadata", 16, 8, INT32), 4 * (32 + 4 * 72 + 17 + 1)),
    ]:
        assert load(case.kernel).num_bytes(case) == num_bytes


@pytest.mark.slow
def test_a_store_into_another_slot_is_wrong() -> None:
    (inputs,) = load("store").inputs(Case("store", 4, 16, BF16), 1, CPU)
    inputs.poison()
    inputs.k_cache[inputs.slots], inputs.v_cache[inputs.slots] = inputs.k, inputs.v
    assert inputs.wrong(None) == 0
    stray = next(slot for slot in range(len(inputs.k_cache)) if slot not in inputs.slots.tolist())
    inputs.v_cache[stray, 3] = 1.0
    assert inputs.wrong(None) == 1


def measured(candidates: list[Candidate], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(load("index"), "candidates", lambda case, compiled: candidates)
    monkeypatch.setattr(sets_module, "MOST_SETS", 4)
    group = measure_case(Case("index", 2, 16, BF16), Settings(CPU, compiler=Compiler("off")), 0.05)
    return {line.candidate.label: line for line in group.lines}


@pytest.mark.slow
def test_a_first_call_that_takes_too_long_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commlib.tools.baselines.kernels.measure.FIRST_CALL_S", 0.05)
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


def measurement(us: float, host_us: float | None = None) -> Measurement:
    noise = (0.99, 1.0, 1.01, 1.0, 1.0)
    issue = [] if host_us is None else [host_us * 1e-6 * each for each in noise]
    return Measurement("", False, 96, [us * 1e-6 * each for each in noise], issue)


def line(label: str, role: str, graph_us: float | None, eager_us: float, wrong: int | None = 0) -> Line:
    timed = None if graph_us is None else measurement(graph_us)
    skipped = "" if timed else "cannot be captured"
    return Line(Candidate(label, role=role), [], wrong, skipped, timed, measurement(eager_us, eager_us / 2))


def group(n: int, *extra: Line) -> Group:
    """Return what a GPU would give: copy 10 µs, ours 12, torch 30 and a wrong one 5."""
    lines = [
        line("commlib", OURS, 12.0 * n, 14.0),
        line("copy", FLOOR, 10.0 * n, 11.0, None),
        line("probe", FLOOR, 6.0 * n, 7.0, None),
        line("torch index_select", PEER, 30.0 * n, 32.0),
        line("triton row", PEER, 15.0 * n, 40.0),
        line("hasty", PEER, 5.0 * n, 6.0, 3),
        Line(Candidate("torch.compile", reason="not asked for"), skipped="not asked for"),
    ]
    return Group(Case("index", n, 4096, BF16), 16384 * n, 240, True, [*lines, *extra])


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ProfileReport:
    monkeypatch.setattr("commlib.tools.cli.profile.job.cold_bytes", lambda device: 120 << 20)
    others = tmp_path / "others.py"
    others.write_text("def candidates(kernel, case, inputs): ...")
    job = Job((Case("index", 1, 4096, BF16),), Settings(GPU, others=[External(others)]), 10.0, True)
    return ProfileReport(job, "commlib profile index")


def rows_by_candidate(report: ProfileReport, of_group: Group) -> dict[str, dict[str, Any]]:
    return {row["candidate"]: row for row in report.add(of_group)}


def test_figures_are_of_the_graph_beside_eager_calls_and_the_best_peer_is_right(report: ProfileReport) -> None:
    rows = rows_by_candidate(report, group(2))
    ours = rows["commlib"]
    assert ours["mode"] == "graph"
    assert ours["time_us"]["p50"] == pytest.approx(24.0)
    assert ours["gbps"] == pytest.approx(32768 / 24e-6 / 1e9, rel=1e-4)
    assert ours["of_copy"] == pytest.approx(10 / 12, rel=1e-4)
    assert ours["eager"]["wall_us"]["p50"] == pytest.approx(14.0)
    assert ours["eager"]["host_us"] == pytest.approx(7.0)
    rows = rows_by_candidate(report, group(1))
    versus = rows["commlib"]["versus"]
    assert versus["of"] == "triton row"  # not what is wrong, not the copy, not the probe
    assert versus["ratio"] == pytest.approx(1.25, rel=1e-3)
    assert rows["torch index_select"]["versus"]["ratio"] == pytest.approx(2.5, rel=1e-3)
    assert rows["probe"]["versus"]["ratio"] == pytest.approx(0.5, rel=1e-3)
    found = rows_by_candidate(report, group(1, line("python loop", PEER, None, 90.0)))["python loop"]
    assert (found["time_us"], found["skipped"]) == (None, "cannot be captured")
    assert found["eager"]["wall_us"]["p50"] == pytest.approx(90.0)
    assert found["versus"] is None


def test_the_document_holds_the_schema_and_csv_and_markdown_say_the_same(report: ProfileReport) -> None:
    report.add(group(1, line("python loop", PEER, None, 90.0)))
    found = written(json.dumps(report.document()), SCHEMA)
    assert found["config"]["peers"] == ["others"]  # no paths
    assert found["copy"] == {"gbps": pytest.approx(1.6384), "bytes": 16384}
    assert found["out_of_bounds"] == {"count": 3, "okay": False}
    view = ProfileView(found, 80)
    rows = list(csv.DictReader(view.render("csv").splitlines()))
    assert [row["candidate"] for row in rows] == [row["candidate"] for row in report.rows if row["eager"]]
    assert (rows[0]["time_us.p50"], rows[0]["versus.of"], rows[0]["wrong"]) == ("12.0", "triton row", "0")
    assert rows[-1]["time_us.p50"] == ""
    lines = view.render("md").splitlines()
    assert "### index, dim 4096, bfloat16, random, cold, CUDA graph" in lines
    (ours,) = (each for each in lines if "commlib*" in each)
    assert ours.split(" | ")[4:8] == ["12.00", "1.37", "83", "7.00"]


TYPED = [
    Case("store", 64, 512, BF16, "sequential", "fp8"),
    Case("metadata", 3, 8, INT32),
    Case("index", 2, 64, torch.float16),
    AttentionCase("attention", 2, 64, torch.float16, "random", "decode fp8", False, 48, 4, 2, 8, True),
]


def test_the_words_of_one_call_ask_for_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Case] = []
    monkeypatch.setattr(once, "once", lambda found, device: asked.append(found) or 0)
    for case in TYPED:
        assert exit_code("profile", *case.words(), "--once") == 0
        assert asked.pop() == case
