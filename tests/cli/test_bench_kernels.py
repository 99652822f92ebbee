"""`commlib bench KERNEL`: what is measured, compared and refused, never a time; and the rows that are made of it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from commlib.kernels import decode_attention
from commlib.tools.baselines.kernels import attention, case
from commlib.tools.baselines.kernels.case import FLOOR, OURS, PEER, Candidate
from commlib.tools.baselines.kernels.index import Index
from commlib.tools.baselines.kernels.measure import measure_case
from commlib.tools.baselines.kernels.metadata import Metadata
from commlib.tools.baselines.kernels.store import Store
from commlib.tools.bench.kernels import KIND, KernelReport
from commlib.tools.timing import Measurement
from tests.cli.calls import written

CPU, BF16 = torch.device("cpu"), torch.bfloat16
QUICK = ("--dim", "96", "--time", "0.1")
ATTENTION = ("bench", "attention", "--time", "0.1", "--dim", "32", "-o", "report.json")
ON_GPUS = {"flash-attn", "FlashInfer"}
REPORT = Path("report.json")


@pytest.fixture(autouse=True)
def small_tables(monkeypatch):
    monkeypatch.setattr(case, "CPU_SHARED_BYTES", 1 << 16)
    monkeypatch.setattr(case, "SETS", (3, 6))


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # the same candidates everywhere


@pytest.mark.parametrize("words", [("index",), ("store", "--fp8"), ("metadata",)], ids=" ".join)
def test_every_kernel_is_measured_beside_its_peers(words, call, no_gpu):
    code, text, _ = call("bench", *words, "--rows", "1,17", *QUICK, "-o", REPORT)
    found = written(REPORT, KIND)
    assert code == 0
    assert (found["complete"], found["config"]["threads"], found["config"]["device"]) == (True, 1, "cpu")
    assert found["wrong"] == 0
    assert {row["n"] for row in found["rows"]} == {1, 17}
    by_role: dict[str, set[str]] = {}
    for row in found["rows"]:
        assert bool(row["skipped"]) != (row["time_us"] is not None)
        by_role.setdefault(row["role"], set()).add(row["candidate"])
        if row["time_us"]:
            assert row["wrong"] == (None if row["role"] == "floor" else 0)
            assert row["gbps"] > 0 and row["of_bound"] > 0
            assert row["host_us"] is None  # on the CPU all of it is the host's
    assert by_role["ours"] == ({"commlib", "commlib unique"} if words[0] == "store" else {"commlib"})
    assert "copy" in by_role["floor"]
    assert {"torch.compile"} < by_role["peer"]
    assert max(map(len, text.splitlines())) <= 80
    assert text.count(" commlib* ") == 2
    assert "# skipped torch.compile: takes long on the CPU (2 cases)" in text


@pytest.mark.slow
def test_decoding_is_measured_beside_who_is_here(call, no_gpu):
    code, text, _ = call(*ATTENTION, "--batch", "1,3", "--length", "40")
    found = written(REPORT, KIND)
    assert (code, max(map(len, text.splitlines())) <= 80) == (0, True)
    rows = {row["candidate"]: row for row in found["rows"] if row["n"] == 3}
    assert {name for name, row in rows.items() if row["skipped"]} == {*ON_GPUS, "read, Triton"}
    for name in ("commlib", "gather, torch", "torch dense"):
        assert (rows[name]["wrong"], rows[name]["error"] < 1e-2) == (0, True)
        assert rows[name]["time_us"]["p50"] > 0
    assert rows["commlib"]["bytes"] == 3 * (40 * 2 * 32 + 2 * 8 * 32) * 2
    assert rows["commlib"]["versus"]["of"] in {"gather, torch", "torch dense"}
    assert max(row["of_bound"] for row in rows.values() if row["role"] == "floor" and row["of_bound"]) == 1
    assert "# skipped flash-attn: flash_attn is not installed (2 cases)" in text


def test_a_wrong_value_of_attention_fails_the_run(monkeypatch, call):
    def wrong(*tensors, out, **options):
        decode_attention(*tensors, out=out, **options)
        out[0, 0, :3] = float("nan")
        return out

    monkeypatch.setattr(attention, "decode_attention", wrong)
    code, text, _ = call(*ATTENTION, "--batch", "1", "--length", "20")
    row = written(REPORT, KIND)["rows"][0]
    assert (row["candidate"], row["wrong"] % 3, row["wrong"] > 0, row["error"]) == ("commlib", 0, True, None)
    assert (code, "WRONG" in text, "FAILED" in text) == (1, True, True)


def test_every_operation_of_the_radix_cache_is_measured_beside_who_does_the_same(call):
    code, text, _ = call("bench", "radix", "--time", "0.1", "--leaves", "200", "-o", REPORT)
    found = written(REPORT, KIND)
    assert (code, found["complete"], found["wrong"]) == (0, True, 0)
    by_operation: dict[str, set[str]] = {}
    for row in found["rows"]:
        by_operation.setdefault(row["variant"], set()).add(row["candidate"])
        assert (row["gbps"] is not None) == (row["variant"] == "prefix_match")
    assert by_operation == {
        "prefix_match": {"commlib", "numpy", "torch"},
        "match": {"commlib"},
        "lock, unlock": {"commlib"},
        "insert": {"commlib"},
        "insert, evict": {"commlib"},
    }
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if not line.startswith("#")]) == len(found["rows"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("heat", ["--cold", "--hot"])
@pytest.mark.parametrize("words", ["index", "index --masked", "store", "store --fp8", "metadata"])
def test_every_candidate_is_replayed_called_and_right(words, heat):
    dim = () if "metadata" in words else ("--dim", "1024")
    command = [sys.executable, "-m", "commlib", "bench", *words.split(), heat, "--rows", "1,64", *dim]
    done = subprocess.run([*command, "--time", "4", "--json"], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert found["wrong"] == 0
    assert [row for row in found["rows"] if row["skipped"]] == []
    for row in found["rows"]:
        assert (row["mode"], row["blocks"] >= 20, row["calls"] >= 20) == ("graph", True, True)
        assert row["calls"] % row["sets"] == 0
        assert row["host_us"] <= row["wall_us"]["p100"]
    assert "triton" in " ".join(row["candidate"] for row in found["rows"])


def test_bytes_are_those_read_and_those_written():
    assert Index(16, 4096, BF16, variant="masked").num_bytes == (4 + 16) * 8192
    assert Store(32, 128, BF16, variant="fp8").num_bytes == 2 * 32 * 128 * 3
    assert Metadata(16, 8, torch.int32).num_bytes == 4 * (32 + 4 * 72 + 17 + 1)


@pytest.mark.slow
def test_a_store_into_another_slot_is_wrong():
    (inputs,) = Store(4, 16, BF16).inputs(1, CPU)
    inputs.poison()
    inputs.k_cache[inputs.slots], inputs.v_cache[inputs.slots] = inputs.k, inputs.v
    assert inputs.check(None)[0] == 0
    stray = next(slot for slot in range(len(inputs.k_cache)) if slot not in inputs.slots.tolist())
    inputs.v_cache[stray, 3] = 1.0
    assert inputs.check(None)[0] == 1


def test_values_are_compared_again_after_the_timing(monkeypatch):
    calls = []

    def tired(inputs):
        def run():
            calls.append(1)
            return inputs.weights[inputs.ids] if len(calls) < 12 else inputs.out

        return run

    monkeypatch.setattr(Index, "candidates", lambda self: [Candidate("tired", tired)])
    (timed,) = measure_case(Index(2, 16, BF16), CPU, {}, 0.05)[1]
    assert timed.wrong == 2 * 16


def line(label, role, graph_us, eager_us, wrong=0):
    noise = (0.99, 1.0, 1.01, 1.0, 1.0)
    both = ([each * 1e-6 * us for each in noise] if us else [] for us in (graph_us, eager_us))
    timed, eager = (Measurement("", False, 96, times_s) for times_s in both)
    eager.issue_s = [eager_us / 2 * 1e-6]
    made = Candidate(label, role=role, wrong=wrong, timed=timed, eager=eager)
    return made if graph_us else replace(made, timed=None, skipped="cannot be captured")


def measured_case(n, *extra):
    """What a GPU would give: copy 10 µs, ours 12, torch 30 and a wrong one 5."""
    lines = [
        line("commlib", OURS, 12.0 * n, 14.0),
        line("copy", FLOOR, 10.0 * n, 11.0, None),
        line("probe", FLOOR, 6.0 * n, 7.0, None),
        line("torch index_select", PEER, 30.0 * n, 32.0),
        line("triton row", PEER, 15.0 * n, 40.0),
        line("hasty", PEER, 5.0 * n, 6.0, 3),
        Candidate("torch.compile", skipped="not asked for"),
    ]
    return Index(n, 4096, BF16), 240, [*lines, *extra]


@pytest.fixture
def report():
    made = KernelReport([Index(1, 4096, BF16)], CPU, 10.0, "commlib bench index")
    made.config["device"] = "cuda"
    return made


def test_figures_are_of_the_graph_beside_eager_calls_and_the_best_peer_is_right(report):
    rows = {row["candidate"]: row for row in report.add(*measured_case(2))}
    ours = rows["commlib"]
    assert ours["mode"] == "graph"
    assert ours["time_us"]["p50"] == pytest.approx(24.0)
    assert ours["gbps"] == pytest.approx(32768 / 24e-6 / 1e9, rel=1e-4)
    assert ours["of_bound"] == pytest.approx(10 / 12, rel=1e-4)
    assert (ours["wall_us"]["p50"], ours["host_us"]) == (pytest.approx(14.0), pytest.approx(7.0))
    rows = {row["candidate"]: row for row in report.add(*measured_case(1, line("python loop", PEER, None, 90.0)))}
    versus = rows["commlib"]["versus"]
    assert versus["of"] == "triton row"  # not what is wrong, not the copy, not the probe
    assert versus["ratio"] == pytest.approx(1.25, rel=1e-3)
    assert rows["torch index_select"]["versus"]["ratio"] == pytest.approx(2.5, rel=1e-3)
    assert rows["probe"]["versus"]["ratio"] == pytest.approx(0.5, rel=1e-3)
    found = rows["python loop"]
    assert (found["time_us"], found["skipped"], found["versus"]) == (None, "cannot be captured", None)
    assert found["wall_us"]["p50"] == pytest.approx(90.0)


def test_a_file_of_the_user_is_measured_and_its_fault_is_a_line(call, tmp_path):
    (tmp_path / "theirs.py").write_text(
        "def candidates(kernel, case, inputs):\n"
        "    right = lambda: inputs.out.copy_(inputs.weights[inputs.ids])\n"
        "    return {'right': right, 'still': lambda: None, 'empty': right, 'absent': 'no licence'}\n"
    )
    (tmp_path / "faulty.py").write_text("def candidates(kernel, case, inputs):\n    raise OSError('no file')\n")
    code, text, _ = call(
        "bench", "index", "--rows", "3", *QUICK, "--peer", "theirs.py", "--peer", "faulty.py", "-o", REPORT
    )
    rows = {row["candidate"]: row for row in written(REPORT, KIND)["rows"]}
    assert (code, rows["right"]["wrong"], rows["still"]["wrong"] % 96) == (1, 0, 0)
    assert (rows["empty"]["role"], rows["copy"]["of_bound"]) == (FLOOR, 1)
    assert "# skipped absent: no licence" in text and "# skipped faulty: " in text
    assert rows["still"]["wrong"] > 0
