"""`commlib profile` of kernels and of calls: what is measured, compared, explained and refused; never a time."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from commlib.kernels import decode_attention
from commlib.tools.baselines.kernels import attention, sets
from commlib.tools.baselines.kernels.sets import rows_of
from commlib.tools.bench import phases
from commlib.tools.report.view import grouped
from commlib.tools.timing import Measurement
from tests.cli.bench_documents import LIMIT, WAYS, document, saved
from tests.cli.calls import exit_code, written

SCHEMA = "cli/profile/schema.json"
QUICK = ("--dim", "96", "--time", "0.1", "--device", "cpu")
ATTENTION_SCHEMA = "cli/profile/attention_schema.json"
ATTENTION = ("profile", "attention", "--time", "0.1", "--device", "cpu", "--dim", "32", "-o", "report.json")
ON_SHM = {"python", "native", "plan", "publish", "wait", "reduce", "copy"}
ON_GPUS = {"torch cuDNN", "torch efficient", "FlexAttention", "flash-attn", "FlashInfer"}
REPORT = Path("report.json")


@pytest.fixture(autouse=True)
def small_tables(monkeypatch):
    monkeypatch.setattr(sets, "CPU_SHARED_BYTES", 1 << 18)
    monkeypatch.setattr(sets, "MOST_SETS", 6)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # the same candidates everywhere


@pytest.mark.parametrize("words", [("index",), ("store", "--fp8"), ("metadata",)], ids=" ".join)
def test_every_kernel_is_measured_beside_its_peers(words, call):
    code, text, _ = call("profile", *words, "-n", "1,17", *QUICK, "-o", REPORT)
    found = written(REPORT, SCHEMA)
    assert code == 0
    assert (found["complete"], found["config"]["threads"], found["config"]["device"]) == (True, 1, "cpu")
    assert found["out_of_bounds"] == {"count": 0, "okay": True}
    assert {row["n"] for row in found["rows"]} == {1, 17}
    by_role: dict[str, set[str]] = {}
    for row in found["rows"]:
        assert bool(row["skipped"]) != (row["time_us"] is not None)
        by_role.setdefault(row["role"], set()).add(row["candidate"])
        if row["time_us"]:
            assert row["wrong"] == (None if row["role"] == "floor" else 0)
            assert row["gbps"] > 0 and row["of_copy"] > 0
            assert row["eager"]["host_us"] is None  # on the CPU all of it is the host's
    assert by_role["ours"] == ({"commlib", "commlib unique"} if words[0] == "store" else {"commlib"})
    assert "copy" in by_role["floor"]
    assert {"torch.compile"} < by_role["peer"]
    assert max(map(len, text.splitlines())) <= 80
    assert text.count(" commlib* ") == 2
    assert "# skipped torch.compile: takes long on the CPU; --compile (2 cases)" in text


def test_wrong_values_fail_the_run_and_are_marked(monkeypatch, call):
    def forgetful(weights, ids, *, out):
        out[:-1] = weights[ids[:-1]]
        return out

    monkeypatch.setattr("commlib.tools.baselines.kernels.index.index", forgetful)
    code, text, _ = call("profile", "index", "-n", "3", *QUICK)
    (line,) = (line for line in text.splitlines() if "commlib*" in line)
    assert (code, line[-5:], "FAILED" in text) == (1, "WRONG", True)


@pytest.mark.slow
def test_rows_of_sets_follow_each_other_or_are_distinct_or_repeat():
    cpu = torch.device("cpu")
    assert rows_of("sequential", 3, 4, 10, cpu).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    found = rows_of("random", 3, 32, 96, cpu)
    assert sorted(found.view(-1).tolist()) == list(range(96))
    assert found[0].tolist() != list(range(32))
    found = rows_of("zipf", 4, 256, 512, cpu)
    assert found.view(-1).bincount(minlength=512).max() > 1024 / 16 > 1024 / 512  # the first has a sixth of all
    unique = rows_of("zipf", 4, 256, 512, cpu, unique=True)
    assert all(len(set(of_set)) == 256 for of_set in unique.tolist())


@pytest.mark.slow
def test_decoding_is_measured_beside_who_is_here(call):
    code, text, _ = call(*ATTENTION, "--compare", "-b", "1,3", "-l", "40")
    found = written(REPORT, ATTENTION_SCHEMA)
    assert (code, max(map(len, text.splitlines())) <= 80) == (0, True)
    assert (found["complete"], found["config"]["phase"], found["config"]["beside"]) == (True, "decode", "compare")
    rows = {row["candidate"]: row for row in found["rows"] if row["batch"] == 3}
    assert {name for name, row in rows.items() if row["skipped"]} == {*ON_GPUS, "read, Triton"}
    for name in ("commlib", "commlib split 256", "gather, torch", "torch flash", "torch math"):
        assert (rows[name]["wrong"], rows[name]["error"] < 1e-2) == (0, True)
        assert rows[name]["time_us"]["p50"] > 0
    assert rows["commlib"]["bytes"] == 3 * (40 * 2 * 32 + 2 * 8 * 32) * 2
    assert rows["commlib"]["flops"] == 3 * 4 * 8 * 32 * 40
    assert rows["commlib"]["versus"]["of"] in {"gather, torch", "torch flash", "torch math"}
    assert max(row["of_ceiling"] for row in rows.values() if row["role"] == "floor" and row["of_ceiling"]) == 1
    assert "# skipped flash-attn: flash_attn is not installed (2 cases)" in text
    assert "# Values too far off : 0 OK" in text


def test_a_wrong_value_of_attention_fails_the_run(monkeypatch, call):
    def wrong(*tensors, out, **options):
        decode_attention(*tensors, out=out, **options)
        out[0, 0, :3] = float("nan")
        return out

    monkeypatch.setattr(attention, "decode_attention", wrong)
    code, text, _ = call(*ATTENTION, "-b", "1", "-l", "20")
    row = written(REPORT, ATTENTION_SCHEMA)["rows"][0]
    assert (row["candidate"], row["wrong"] % 3, row["wrong"] > 0, row["error"]) == ("commlib", 0, True, None)
    assert (code, "WRONG" in text, "FAILED" in text) == (1, True, True)


KERNELS = [("index",), ("index", "--masked"), ("store",), ("store", "--fp8"), ("metadata",)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("heat", ["--cold", "--hot"])
@pytest.mark.parametrize("words", KERNELS, ids=" ".join)
def test_every_candidate_is_replayed_called_and_right(words, heat):
    dim = () if "metadata" in words else ("--dim", "1024")
    command = [sys.executable, "-m", "commlib", "profile", *words, heat, "-n", "1,64", *dim, "--time", "4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert found["out_of_bounds"] == {"count": 0, "okay": True}
    assert [row for row in found["rows"] if row["skipped"] and row["candidate"] != "python loop"] == []
    for row in found["rows"]:
        if row["candidate"] == "python loop":
            continue
        assert (row["mode"], row["blocks"] >= 20, row["calls"] >= 20) == ("graph", True, True)
        assert row["calls"] % row["sets"] == 0
        assert row["eager"]["host_us"] <= row["eager"]["wall_us"]["p100"]
    assert "triton" in " ".join(row["candidate"] for row in found["rows"])


def are(expected, phases):
    """Say whether phases are those expected; a rank whose peers are there already has nothing to wait for."""
    return phases | {"wait"} == expected


def test_the_phases_of_each_rank_add_up_to_its_call(command, tmp_path):
    output, trace, picture = (tmp_path / name for name in ("comm.json", "trace.json", "comm.svg"))
    files = ("-o", str(output), "--trace", str(trace), "--plot", str(picture))
    done = command("profile", "comm", "-n", "2", "--bytes", "16K", *files, "--time", "0.2", "--backend", "shm")
    assert done.returncode == 0, done.stdout + done.stderr
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
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "# phases add up to" in done.stdout
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
    assert exit_code("profile", "comm", "--bytes", "64", "--time", "0.1", "--backend", "shm") == 1
    assert "# Out of bounds values : 3 FAILED" in capsys.readouterr().out


@pytest.fixture
def analyze(call):
    """Analyze calls; return the document and the text."""

    def analyze(*words):
        code, text, errors = call("profile", "comm", *words, "--backend", "shm", "-o", "analysis.json")
        assert (code, max(map(len, text.splitlines())) <= 80) == (0, True), errors
        return written(Path("analysis.json"), "cli/profile/comm_analysis_schema.json"), text

    return analyze


def expected_us(algorithm, size):
    _, _, latency_us, gbps = WAYS[algorithm]
    return latency_us + size / gbps / 1e3


def test_the_choice_for_each_type_of_memory_is_the_plan_s(analyze):
    found, text = analyze("--analyze", "4K,1M")
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
    assert "no times of some choices" in text and "no limit" in text


def test_times_and_the_limit_are_those_of_results(analyze, tmp_path):
    results = saved(tmp_path, document(), "bench.json")
    found, text = analyze("--analyze", "64,96K", "--results", str(results))
    for row in found["rows"]:
        assert row["expected_us"] == pytest.approx(expected_us(row["algorithm"], row["size"]), rel=1e-3)
        assert row["limit_us"] == pytest.approx(max(row["size"] / LIMIT / 1e3, 0.3), abs=1e-3)
        assert row["times_from"] == "bench.json, float32"
        measured = expected_us(row["algorithm"], row["size"]) if row["size"] == 64 else None
        assert row["measured_us"] == (pytest.approx(measured, abs=1e-3) if measured else None)
    for others in (("-n", "3"), ("-d", "bf16")):
        of_others, _ = analyze("--analyze", "64", "--results", str(results), *others)
        assert of_others["rows"][0]["expected_us"] is None
    assert "expected: 2.1 us + size / 3.3 GB/s" in text
    assert "limit: memory: copies of 64 MiB by 2 ranks at once" in text


def test_every_operation_of_the_radix_cache_is_measured_beside_who_does_the_same(call):
    code, text, _ = call("profile", "radix", "--time", "0.1", "--leaves", "200", "-o", "report.json")
    report = written(Path("report.json"), "cli/profile/radix_schema.json")
    assert (code, report["complete"], report["leaves"]) == (0, True, 200)
    by_operation = {}
    for row in report["rows"]:
        by_operation.setdefault(row["operation"], set()).add(row["candidate"])
        assert 0 < row["least_us"] <= row["median_us"]
        assert (row["to_ours"] is None) == (row["candidate"] == "commlib")
        assert (row["gbps"] is not None) == (row["operation"] == "prefix_match")
    assert by_operation == {
        "prefix_match": {"commlib", "numpy", "torch"},
        "match": {"commlib", "commlib out=", "dictionary, 16"},
        "lock, unlock": {"commlib"},
        "insert": {"commlib"},
        "evict": {"commlib"},
        "insert, evict": {"commlib"},
    }
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if not line.startswith("#")]) == len(report["rows"])
