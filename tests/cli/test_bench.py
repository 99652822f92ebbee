"""`commlib bench`: what is measured and written, what is marked and skipped, and the exit codes; never a time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commlib.bench.rows import KIND, spread
from tests.cli.calls import exit_code, refuses

QUICK = ("-b", "8", "-e", "4K", "-f", "512", "--time", "0.1", "--iters", "2")
FOUR_SIZES = ("-b", "8", "-e", "4K", "-f", "8", "--time", "0.1", "--iters", "2")
Bench = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench") / "report.json"


@pytest.fixture(scope="module")
def report(bench: Bench, file: Path) -> tuple[str, dict[str, Any]]:
    """One run on two ranks that most tests look at: the table, and the document beside it."""
    words = ("all_reduce,broadcast", "all_gatherv", "barrier", "-n", "2", "--peers", "torch,nccl", "-o", str(file))
    result = bench(*words, *FOUR_SIZES)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout, KIND.read(file)


def measured(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in document["rows"] if "skipped" not in row]


def test_every_algorithm_in_every_form_has_a_line(report: tuple[str, dict[str, Any]]) -> None:
    table, document = report
    lines = [line.split() for line in table.splitlines() if line and not line.startswith("#")]
    assert [(line[1].rstrip("*~"), line[2]) for line in lines] == [
        (row["algorithm"], "in" if row["in_place"] else "out") for row in measured(document)
    ]
    assert max(map(len, table.splitlines())) <= 80
    assert {"shm_oneshot", "shm_twoshot", "shm_symmetric", "torch"} <= {line[1].rstrip("*~") for line in lines}


def test_the_document_names_job_and_plan_explains_choices_and_says_what_a_peer_lacks(
    report: tuple[str, dict[str, Any]],
) -> None:
    document = report[1]
    assert (document["schema"], document["version"]) == ("commlib.bench", 1)
    assert (document["complete"], document["ended"]) == (True, "")
    assert document["command"].startswith("commlib bench all_reduce,broadcast")
    assert {"cpu", "cores", "kernel", "torch", "commlib", "settings"} <= set(document["fingerprint"])
    config = {"ranks": 2, "backend": "shm", "mode": "eager", "sizes": [8, 64, 512, 4096], "iterations": 2}
    assert config.items() <= document["config"].items()
    assert (document["config"]["peers"], document["config"]["baseline"]) == (["torch"], "torch")
    assert re.fullmatch(r"[0-9a-f]{12}", document["plan"]["digest"])
    assert document["out_of_bounds"] == {"count": 0, "okay": True}
    assert document["average_bus_bandwidth"] == {"plan": None, "peers": {}}  # of different collectives
    document = report[1]
    for op in ("all_reduce", "broadcast", "barrier"):
        chosen = [row for row in document["rows"] if row["op"] == op and row["chosen"]]
        assert chosen
        for row in chosen:
            assert re.fullmatch(r"rules\[\d+\]\[\d+\]", row["rule"])
            assert f"{op} of" in row["why"]
            assert f" runs {row['algorithm']}" in row["why"]
            assert row["rule"] in row["why"]
    assert {row["why"] for row in document["rows"] if not row["chosen"]} == {None}
    document = report[1]
    skipped = {(row["op"], row["algorithm"]): row["skipped"] for row in document["rows"] if "skipped" in row}
    assert skipped["all_gatherv", "torch"] == "torch.distributed with gloo has no all_gatherv"
    assert not any(row["algorithm"] == "nccl" for row in document["rows"])
    assert document["notes"] == ["skipped: peer nccl: NCCL needs GPUs; this job is on cpu"]


def test_a_row_carries_percentiles_and_nccl_tests_figures(report: tuple[str, dict[str, Any]]) -> None:
    row = next(row for row in report[1]["rows"] if row["op"] == "all_reduce" and row["size"] == 4096)
    assert (row["count"], row["type"], row["redop"], row["root"], row["wrong"]) == (1024, "float32", "sum", None, 0)
    best = max(rate for _, rate in report[1]["limit"]["by_size"])  # all sizes are below the least of the copies
    assert row["of_limit"] == pytest.approx(row["busbw"] / best, abs=1e-5)
    times = [row["time_us"][name] for name in ("p0", "p10", "p50", "p90", "p100")]
    assert times == sorted(times)
    assert row["algbw"] == pytest.approx(4096 / row["time_us"]["p50"] / 1e3, rel=1e-3)
    assert row["busbw"] == pytest.approx(row["algbw"])  # 2 (n - 1) / n of two ranks


def test_a_speed_up_lies_in_its_interval_and_is_over_the_first_peer_where_its_blocks_agree(
    report: tuple[str, dict[str, Any]],
) -> None:
    document = report[1]
    rows = [row for row in measured(document) if row["op"] == "all_reduce"]
    for row in rows:
        if row["algorithm"] == "torch":
            assert row["speedup"] is None
            continue
        speedup = row["speedup"]
        (torch_row,) = (
            other
            for other in rows
            if (other["algorithm"], other["size"], other["in_place"]) == ("torch", row["size"], row["in_place"])
        )
        if spread(torch_row["time_us"]) > document["config"]["agree"]:
            assert speedup is None
            continue
        assert speedup["over"] == "torch"
        assert speedup["low"] <= speedup["ratio"] <= speedup["high"]
        assert speedup["ratio"] == pytest.approx(torch_row["time_us"]["p50"] / row["time_us"]["p50"], rel=1e-2)


def test_wrong_values_fail_the_run(tmp_path: Path) -> None:
    # A communicator whose all_reduce forgets one element, under the real command.
    script = tmp_path / "broken.py"
    script.write_text(
        "from commlib.communicator import Communicator\n"
        "right = Communicator.all_reduce\n"
        "def wrong(self, x, op='sum', out=None, async_op=False):\n"
        "    result = right(self, x, op, out, async_op)\n"
        "    result[-1] = 77\n"
        "    return result\n"
        "Communicator.all_reduce = wrong\n"
        "from commlib.cli import main\n"
        f"main(['bench', 'all_reduce', '--peers', 'none', *{QUICK!r}])\n"
    )
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert re.search(r"# Out of bounds values : [1-9]\d* FAILED", result.stdout)


def test_a_wrong_option_is_said_once_before_any_rank_starts() -> None:
    cases = (
        ("all_reduces", "no collective 'all_reduces'; there are all_reduce, "),
        ("--dtype float31", "no element type 'float31'; there are float64, "),
        ("all_reduce --backend shm --algorithms nccl_direct", "there are all, auto, shm_oneshot, "),
        ("--peers gloo", "no peer 'gloo'; there are torch, mpi, nccl, symm"),
        ("--baseline magic", "no baseline 'magic'; there are "),
        (f"--peer {__file__}", "has no function make()"),
        ("all_reduce --params magic=1", "no parameter 'magic'; there are "),
        ("all_reduce --params chunk_bytes=8M", "chunk_bytes 8388608 is not a multiple of 64 between"),
        ("--peers torch --baseline mpi", "--baseline mpi is not measured; add it: --peers torch,mpi"),
        ("-b 1M -e 1K", "less than -b"),
        ("--root 2", "--root 2 is no rank; the last one is 1"),
        ("-o nowhere/report.json", "no folder nowhere"),
        ("all_reduce --redop band", "nothing to measure: band of float32 is not defined"),
    )
    refuses("bench -n 2", cases)


PEER = """
from commlib.peers import CallTable
from commlib.timing import Candidate


class Late(CallTable):
    name, labels = "late", ("late", "probe")

    def join(self, comm):
        self.comm = comm
        Late.calls = {"all_reduce": lambda x, out, call: lambda: comm.all_reduce(x, out=out)}

    def candidates(self, comm, collective, in_place):
        probe = Candidate("probe", lambda x, out, call: comm.barrier, in_place, checked=False)
        return [*super().candidates(comm, collective, in_place), probe]


def make():
    return Late()
"""


@pytest.mark.slow
def test_a_file_is_one_more_peer_and_its_probe_is_not_compared(bench: Bench, tmp_path: Path) -> None:
    file, path = tmp_path / "late.py", tmp_path / "report.json"
    file.write_text(PEER)
    words = ("all_reduce", "barrier", "-n", "2", "--algorithms", "auto", "--peers", "none", "--peer", str(file))
    result = bench(*words, "--baseline", "best", "-o", str(path), "--in-place", "out", *QUICK)
    assert (result.returncode, result.stderr) == (0, "")
    document = KIND.read(path)
    wrong = {(row["op"], row["algorithm"]): row["wrong"] for row in measured(document)}
    assert (wrong["all_reduce", "late"], wrong["all_reduce", "probe"]) == (0, None)
    skipped = {(row["op"], row["algorithm"]): row["skipped"] for row in document["rows"] if "skipped" in row}
    assert skipped == {("barrier", "late"): "late has no barrier"}
    ours = [row for row in measured(document) if row["ours"] and row["op"] == "all_reduce"]
    assert {row["speedup"]["over"] for row in ours if row["speedup"]} <= {"late"}  # the probe is nobody's rival
    assert (document["config"]["peers"], document["config"]["baseline"]) == (["late"], "best")


@pytest.mark.slow
def test_without_matplotlib_the_rest_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("commlib.report.plot.importlib.util.find_spec", lambda name: None)
    picture, path = tmp_path / "curves.png", tmp_path / "report.csv"
    words = ("bench", "barrier", "--peers", "none", "--plot", str(picture), "-o", str(path), *QUICK)
    assert exit_code(*words) == 0
    assert capsys.readouterr().err == "commlib: no curves.png: drawing needs matplotlib; `pip install matplotlib`\n"
    assert not picture.exists()
    assert path.read_text().startswith("op,size,")


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    command = [sys.executable, "-m", "commlib", "bench", "all_reduce", "-n", "2", "--peers", "none", "-o", str(path)]
    script = tmp_path / "sitecustomize.py"
    started = tmp_path / "started"
    # Ranks say when the first rows are there: JSON is printed at the end only.
    script.write_text(
        "import os, sys\n"
        "if 'COMMLIB_LOCAL_RANK' in os.environ:\n"
        "    from commlib.report.run import Output\n"
        f"    Output.rows = lambda self, rows: open({str(started)!r}, 'w').close()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [*command, "-f", "2", "--time", "60", "--format", "json"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    ) as process:
        deadline = time.monotonic() + 60
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        printed = process.stdout.read()
    assert process.returncode == 130
    document = KIND.read(path)
    assert (document["complete"], document["ended"]) == (False, "interrupted")
    assert document["rows"]
    assert [other.name for other in tmp_path.glob(".*")] == []
    assert json.loads(printed) == document
