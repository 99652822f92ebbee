"""`commlib profile comm`: phases that add up, a trace of them, the plan's choice with its expected times, refusals."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import pairwise

import pytest
import torch

from commlib.bench import phases
from commlib.report.view import grouped
from commlib.timing import Measurement
from tests.cli.bench_documents import LIMIT, WAYS, document, saved
from tests.cli.calls import exit_code, refuses, written

ON_SHM = {"python", "native", "plan", "publish", "wait", "reduce", "copy"}


@pytest.fixture(scope="module")
def profile(quick_python):
    def profile(*words):
        command = [str(quick_python), "-m", "commlib", "profile", "comm", *words, "--time", "0.2", "--backend", "shm"]
        environment = {**os.environ, "COLUMNS": "80"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return profile


def alone(monkeypatch, *words):
    """Run in this process, with one rank."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return exit_code("profile", "comm", *words)


def are(expected, phases):
    """Say whether phases are those expected; a rank whose peers are there already has nothing to wait for."""
    return phases | {"wait"} == expected


def test_the_phases_of_each_rank_add_up_to_its_call(profile, tmp_path):
    output, trace, picture = (tmp_path / name for name in ("comm.json", "trace.json", "comm.svg"))
    text = profile("-n", "2", "--bytes", "16K", "-o", str(output), "--trace", str(trace), "--plot", str(picture))
    found = written(output, "cli/profile/comm_schema.json")
    assert (found["config"]["ranks"], found["config"]["size"], found["wrong"]) == (2, 16 << 10, 0)
    assert found["choice"]["algorithm"].startswith("shm_")
    for rank in found["ranks"]:
        rows = [row for row in found["rows"] if row["rank"] == rank["rank"]]
        assert are(ON_SHM, {row["phase"] for row in rows})
        assert sum(row["us"] for row in rows) == pytest.approx(rank["sum_us"], rel=0.01)
        assert sum(row["share"] for row in rows) == pytest.approx(1, abs=0.01)
        assert rank["sum_us"] <= rank["stamped_us"], "what the stamps take is taken off"
    assert {bar["rank"] for bar in found["timeline"]} == {0, 1}
    assert picture.read_text(encoding="utf-8").count("publish") > 0
    assert max(map(len, text.splitlines())) <= 80
    assert "# phases add up to" in text
    check_trace(json.loads(trace.read_text(encoding="utf-8"))["traceEvents"])


def check_trace(events):
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"rank 0", "rank 1", "host"}
    spans = [event for event in events if event["ph"] == "X"]
    assert min(span["ts"] for span in spans) == 0
    for of_call in grouped(spans, lambda span: (span["pid"], span["args"]["call"])):
        assert are(ON_SHM, {span["name"] for span in of_call})
        for one, following in pairwise(of_call):
            assert one["ts"] + one["dur"] == pytest.approx(following["ts"], abs=0.002), "no time is left out"


def test_a_wrong_value_fails_the_run(monkeypatch, capsys):
    monkeypatch.setattr(phases, "measure", lambda *_: [Measurement("shm", False, times_s=[1e-6], wrong=3)])
    assert alone(monkeypatch, "--bytes", "64", "--time", "0.1", "--backend", "shm") == 1
    assert "# Out of bounds values : 3 FAILED" in capsys.readouterr().out


def test_what_cannot_be_looked_at_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cases = (
        ("--algorithm shm_none", "no algorithm of all_reduce 'shm_none'"),
        ("--graph", "--graph needs GPUs"),
        ("barrier --in-place", "barrier has no in-place form"),
        ("broadcast -n 2 -r 2", "--root 2 is no rank; the last one is 1"),
        ("--trace /nowhere/trace.json", "there is no folder /nowhere"),
    )
    refuses("profile comm", cases)


@pytest.fixture
def analyze(monkeypatch, tmp_path, capsys):
    """Analyze calls; return the document and the text."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("COLUMNS", "80")

    def analyze(*words):
        path = tmp_path / "analysis.json"
        assert exit_code("profile", "comm", *words, "-o", str(path)) == 0, capsys.readouterr().err
        found = written(path, "cli/profile/comm_analysis_schema.json")
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 80
        return found, text

    return analyze


def expected_us(algorithm, size):
    _, _, latency_us, gbps = WAYS[algorithm]
    return latency_us + size / gbps / 1e3


def test_the_choice_for_each_type_of_memory_is_the_plan_s(analyze):
    found, text = analyze("--analyze", "4K,1M", "--backend", "shm")
    rows = [(row["size"], row["placement"], row["algorithm"]) for row in found["rows"]]
    assert rows == [
        (4096, "plain", "shm_oneshot"),
        (4096, "symmetric", "shm_symmetric"),
        (1 << 20, "plain", "shm_twoshot"),
        (1 << 20, "symmetric", "shm_symmetric"),
    ]
    assert found["rows"][0]["params"] == {"chunk_bytes": 128 << 10, "hot": 1}
    assert "for sizes above 8K" in found["rows"][2]["why"]
    assert {row["expected_us"] for row in found["rows"]} == {None}
    assert "copies: none: peers read and write the tensors where they lie" in text
    assert "no times of some choices" in text
    assert "no limit" in text


def test_times_and_the_limit_are_those_of_results(analyze, tmp_path):
    results = saved(tmp_path, document(), "bench.json")
    found, text = analyze("--analyze", "64,96K", "--backend", "shm", "--results", str(results))
    for row in found["rows"]:
        assert row["expected_us"] == pytest.approx(expected_us(row["algorithm"], row["size"]), rel=1e-3)
        assert row["limit_us"] == pytest.approx(max(row["size"] / LIMIT / 1e3, 0.3), abs=1e-3)
        assert row["times_from"] == "bench.json, float32"
        measured = expected_us(row["algorithm"], row["size"]) if row["size"] == 64 else None
        assert row["measured_us"] == (pytest.approx(measured, abs=1e-3) if measured else None)
    for others in (("-n", "3"), ("-d", "bf16")):
        of_others, _ = analyze("--analyze", "64", "--backend", "shm", "--results", str(results), *others)
        assert of_others["rows"][0]["expected_us"] is None
    assert "expected: 2.1 us + size / 3.3 GB/s" in text
    assert "limit: memory: copies of 64 MiB by 2 ranks at once" in text


def test_what_cannot_be_explained_is_refused():
    cases = (
        ("--analyze big", "--analyze big:"),
        ("--analyze 1M --plot x.png", "leave --plot, --trace, --algorithm out"),
        (f"--results {__file__}", "--results is for --analyze SIZES"),
        (f"--analyze 1M --results {__file__}", "not JSON"),
    )
    refuses("profile comm", cases)
