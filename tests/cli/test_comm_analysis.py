"""`commlib profile comm --analyze`: the plan's choice, its parameters and copies, expected times and the limit."""

from __future__ import annotations

import json
from importlib import resources

import jsonschema
import pytest
import torch

from commlib.cli import main
from commlib.cli.profile.comm_analysis import COPIES, copies_of
from commlib.collectives import COLLECTIVES
from tests.cli.bench_documents import LIMIT, WAYS, document, saved

SCHEMA = json.loads((resources.files("commlib.cli.profile") / "comm_analysis_schema.json").read_text(encoding="utf-8"))
H200 = ("--plan", "nccl-nvidia-h200", "--backend", "nccl", "-d", "bf16")


@pytest.fixture
def analyze(monkeypatch, tmp_path, capsys):
    """Analyze calls; return the document and the text."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("COLUMNS", "80")

    def analyze(*words):
        path = tmp_path / "analysis.json"
        with pytest.raises(SystemExit) as end:
            main(["profile", "comm", *words, "-o", str(path)])
        assert end.value.code == 0, capsys.readouterr().err
        found = json.loads(path.read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator(SCHEMA).validate(found)
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


def test_symmetric_memory_alone_is_explained_if_asked_for(analyze):
    found, _ = analyze("all_gather", "--analyze", "1M", "--symmetric", "--backend", "shm", "-n", "4")
    assert [(row["placement"], row["algorithm"]) for row in found["rows"]] == [("symmetric", "shm_symmetric")]
    assert found["config"]["ranks"] == 4


def test_times_and_the_limit_are_those_of_results(analyze, tmp_path):
    results = saved(tmp_path, document(), "bench.json")
    found, text = analyze("--analyze", "64,96K", "--backend", "shm", "--results", str(results))
    for row in found["rows"]:
        assert row["expected_us"] == pytest.approx(expected_us(row["algorithm"], row["size"]), rel=1e-3)
        assert row["limit_us"] == pytest.approx(max(row["size"] / LIMIT / 1e3, 0.3), abs=1e-3)
        assert row["times_from"] == "bench.json, float32"
        measured = expected_us(row["algorithm"], row["size"]) if row["size"] == 64 else None
        assert row["measured_us"] == (pytest.approx(measured, abs=1e-3) if measured else None)
    assert "expected: 2.1 us + size / 3.3 GB/s" in text
    assert "limit: memory: copies of 64 MiB by 2 ranks at once" in text


def test_results_of_other_ranks_or_types_say_nothing(analyze, tmp_path):
    results = saved(tmp_path, document(), "bench.json")
    words = ("--analyze", "64", "--backend", "shm", "--results", str(results))
    for others in (("-n", "3"), ("-d", "bf16")):
        found, _ = analyze(*words, *others)
        assert found["rows"][0]["expected_us"] is None


def test_samples_beside_the_plan_give_times(analyze):
    found, text = analyze("all_gather", "--analyze", "64K,8M", *H200, "--graph")
    assert found["plan"]["source"] == "nccl-nvidia-h200.json"
    for row in found["rows"]:
        assert row["algorithm"].startswith("lsa_")
        assert 0 < row["error"] < 0.2
        assert row["sizes"] >= 4
        assert row["times_from"].startswith("nccl-nvidia-h200.samples.json")
    at = {row["size"]: row for row in found["rows"]}
    assert at[64 << 10]["measured_us"] == pytest.approx(at[64 << 10]["expected_us"], rel=0.2)
    assert "plain and symmetric, runs" in text, "what is the same is told once"
    assert found["rows"][0]["params"]["blocks"] > 0


def test_every_algorithm_has_words_for_its_copies():
    names = {algorithm.name for collective in COLLECTIVES.values() for algorithm in collective.algorithms}
    assert {copies_of(name, {}) for name in names} == set(COPIES.values()), "and none is of no algorithm"
    assert copies_of("my_ring", {}) == "the plugin's own"
    assert copies_of("shm_oneshot", {"pull": 1}).startswith("one: peers read the tensor in the memory of its process")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--analyze", "big"), "--analyze big:"),
        (("--analyze", "1M", "--plot", "x.png"), "leave --plot, --trace, --algorithm out"),
        (("--analyze", "1M", "--algorithm", "shm_oneshot"), "leave --plot, --trace, --algorithm out"),
        (("all_reduced", "--analyze", "1M"), "no collective 'all_reduced'"),
        (("--results", __file__), "--results is for --analyze SIZES"),
        (("--analyze", "1M", "--results", __file__), "not JSON"),
    ],
)
def test_what_cannot_be_explained_is_refused(capsys, words, said):
    with pytest.raises(SystemExit) as end:
        main(["profile", "comm", *words])
    assert end.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())
