"""The commands on a machine with GPUs, as a newcomer types them."""

import json
import re
import shutil
from pathlib import Path

import pytest

from commlib.plan import Plan
from tests.gpu.commands import ROOT, commlib

PEERS = ROOT / "benchmarks/peers"
FEW = ("--time", "5", "--format", "json")


def test_bench_measures_gpus_and_finds_nothing_wrong() -> None:
    found = json.loads(commlib("bench", "all_reduce", "-n", "2", "-b", "1K", "-e", "64K", *FEW))
    assert found["config"]["backend"] == "nccl"
    assert found["config"]["peers"] == ["nccl"]  # unasked
    assert found["out_of_bounds"] == {"count": 0, "okay": True}


def test_bench_replays_graphs_beside_its_peers() -> None:
    words = ("-b", "1K", "-e", "64K", "-f", "64", "--graph", "--peers", "nccl,torch", *FEW)
    found = json.loads(commlib("bench", "all_reduce", "-n", "2", "--dtype", "bfloat16", *words))
    assert found["config"]["mode"] == "graph"
    timed = {row["algorithm"] for row in found["rows"] if "time_us" in row}
    assert {"nccl", "torch", "nccl_direct", "lsa_ll_oneshot"} <= timed, found["rows"]
    assert found["out_of_bounds"] == {"count": 0, "okay": True}


@pytest.mark.parametrize("graph", [(), ("--graph",)], ids=["eager", "graph"])
def test_a_second_nccl_in_the_same_processes_makes_the_calls_and_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: tuple[str, ...]
) -> None:
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8").split()
    copy = shutil.copy(next(name for name in mapped if "libnccl.so" in name), tmp_path)  # to the loader it is another
    monkeypatch.setenv("NEWER_NCCL", str(copy))
    files = (f"--peer={PEERS / name}.py" for name in ("nccl_windows", "newer_nccl", "newer_nccl_windows"))
    words = ("-n", "2", "--dtype", "bf16", "-b", "1K", "-e", "1M", "-f", "32", "--time", "8", "--format", "json")
    found = json.loads(commlib("bench", "all_reduce", "all_gather", *words, *graph, "--peers", "nccl", *files))
    timed = {(row["op"], row["algorithm"]): row for row in found["rows"] if "time_us" in row}
    for op in ("all_reduce", "all_gather"):
        assert {(op, "nccl"), (op, "nccl_symmetric")} <= set(timed), found["notes"]
        assert re.fullmatch(r"NCCL \d+\.\d+\.\d+", timed[op, "newer_nccl"]["library"])
        assert timed[op, "newer_nccl_symmetric"]["library"].endswith(", symmetric windows")
    assert found["out_of_bounds"] == {"count": 0, "okay": True}


def test_tune_writes_a_plan_for_graphs_and_eager_calls(tmp_path: Path) -> None:
    output = tmp_path / "plan.json"
    words = ("-b", "1K", "-e", "64K", "--dtype", "bfloat16", "--time", "12", "--fresh", "-o", str(output))
    commlib("tune", "all_reduce", "-n", "2", *words)
    plan = Plan.load(output)
    for mode in ("graph", "eager"):
        why = plan.explain("all_reduce", 4096, "bfloat16", world=2, mode=mode)
        assert why.algorithm.startswith("lsa_"), str(why)
        assert why.runner_up


@pytest.mark.parametrize("example", ["allreduce.py", "graph.py"])
def test_an_example_runs_on_two_gpus(example: str) -> None:
    assert commlib("run", "-n", "2", f"examples/{example}").count("all_reduce of") == 2


def test_doctor_tries_the_gpus_and_finds_that_the_job_will_run() -> None:
    found = json.loads(commlib("doctor", "--json"))
    assert (found["job"], found["runs"]) == ("nccl", True)
    states = {finding["topic"]: finding["state"] for finding in found["findings"]}
    works = ("libraries", "gpu", "nccl", "gpu ranks", "two ranks")
    assert {topic: states[topic] for topic in works} == dict.fromkeys(works, "ok"), found


def test_build_takes_the_architecture_of_the_gpus_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMLIB_CACHE_DIR", str(tmp_path))
    for compiled in (True, False):
        said = commlib("build", "-n", "2", "--dtype", "bfloat16")
        assert said.startswith("0 compiled") != compiled, said


def test_a_report_measures_the_ranks_of_gpus(tmp_path: Path) -> None:
    said = commlib(
        "report", "--quick", "-n", "2", "--only", "metadata,collectives,plan", "-o", str(tmp_path / "report")
    )
    assert [line.split()[1] for line in said.splitlines()[:3]] == ["done"] * 3, said
    assert "CUDA graph" in (tmp_path / "report/collectives.md").read_text(encoding="utf-8")
