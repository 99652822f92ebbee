"""`commlib bench`: the table's shape, the JSON, what is marked and skipped, and the exit codes; never a time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from commlib.cli import main

COLUMNS = "COLUMNS"
QUICK = ("-b", "8", "-e", "4K", "-f", "512", "--time", "0.1", "--iters", "2")


def bench(*words: str, width: int = 80) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "commlib", "bench", *words]
    environment = {**os.environ, COLUMNS: str(width)}
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env=environment)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """One run on two ranks that most tests look at: the table, and the JSON beside it."""
    path = tmp_path_factory.mktemp("bench") / "report.json"
    result = bench("all_reduce", "broadcast", "all_gatherv", "barrier", "-n", "2", "-o", str(path), *QUICK)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout, json.loads(path.read_text())


def test_the_header_says_what_is_measured_and_where(report: tuple[str, dict[str, Any]]) -> None:
    head = report[0].partition("\n#\n")[0]
    for word in ("2 ranks on shm", "Linux", "torch", "checked", "median", "plan"):
        assert word in head


def test_the_table_has_nccl_tests_columns_and_every_algorithm(report: tuple[str, dict[str, Any]]) -> None:
    table, document = report
    assert re.search(r"size +algorithm +form +time +algbw +busbw +#wrong +torch", table)
    rows = [line.split() for line in table.splitlines() if line and not line.startswith("#")]
    measured = [row for row in document["rows"] if "skipped" not in row]
    assert [(row[1].rstrip("*"), row[2]) for row in rows] == [
        (row["algorithm"], "in" if row["in_place"] else "out") for row in measured
    ]
    assert {"shm_oneshot", "shm_twoshot", "shm_symmetric", "torch"} <= {row[1].rstrip("*") for row in rows}


def test_the_plans_choice_is_marked_and_explained(report: tuple[str, dict[str, Any]]) -> None:
    table, document = report
    assert re.search(r"# plan, plain tensors: shm_\w+ at 8–4K \(rules\[\d+\]\[\d+\]\)", table)
    for op in ("all_reduce", "broadcast", "barrier"):
        chosen = {row["rule"] for row in document["rows"] if row["op"] == op and row["chosen"]}
        assert chosen
        assert None not in chosen


def test_the_table_closes_as_nccl_tests_does(report: tuple[str, dict[str, Any]]) -> None:
    last = report[0].splitlines()[-2:]
    assert last[0] == "# Out of bounds values : 0 OK"
    assert re.fullmatch(r"# Avg bus bandwidth    : [\d.]+ \(torch [\d.]+\)", last[1])


def test_what_torch_lacks_is_skipped_and_said(report: tuple[str, dict[str, Any]]) -> None:
    table, document = report
    assert "skipped torch out of place: torch.distributed with gloo has no all_gatherv" in " ".join(table.split())
    skipped = [row for row in document["rows"] if "skipped" in row]
    assert {(row["op"], row["algorithm"]) for row in skipped} == {("all_gatherv", "torch")}


def test_the_json_carries_its_schema_the_machine_the_plan_and_percentiles(
    report: tuple[str, dict[str, Any]],
) -> None:
    document = report[1]
    assert (document["schema"], document["version"], document["complete"]) == ("commlib.bench", 1, True)
    assert document["command"].startswith("commlib bench all_reduce broadcast")
    assert {"cpu", "cores", "kernel", "torch", "commlib", "settings"} <= set(document["fingerprint"])
    assert re.fullmatch(r"[0-9a-f]{12}", document["plan"]["digest"])
    assert document["out_of_bounds"] == {"count": 0, "okay": True}
    row = next(row for row in document["rows"] if row["op"] == "all_reduce" and row["size"] == 4096)
    assert (row["count"], row["type"], row["redop"], row["root"], row["wrong"]) == (1024, "float32", "sum", None, 0)
    times = [row["time_us"][name] for name in ("p0", "p10", "p50", "p90", "p100")]
    assert times == sorted(times)
    assert row["busbw"] == pytest.approx(row["algbw"])  # 2 (n - 1) / n of two ranks
    assert row["vs_torch"] > 0


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    words = (
        "reduce_scatter",
        "-n",
        "2",
        "--dtype",
        "bfloat16",
        "--redop",
        "sum,avg,band",
        "--algorithms",
        "auto",
        *QUICK,
    )
    result = bench(*words, width=width)
    assert result.returncode == 0
    assert max(len(line) for line in result.stdout.splitlines()) <= width
    assert ("in-place" in result.stdout) == (width >= 120)
    assert "# skipped: band of bfloat16 is not defined" in result.stdout


def test_one_process_measures_a_world_of_one_and_says_so() -> None:
    result = bench("all_reduce", "--format", "json", "--peers", "none", "--algorithms", "shm_twoshot", *QUICK)
    document = json.loads(result.stdout)
    assert document["config"]["ranks"] == 1
    assert {row["algorithm"] for row in document["rows"]} == {"shm_twoshot"}
    assert "-n N starts more" in bench("barrier", *QUICK).stdout


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("all_reduces",), "no collective 'all_reduces'"),
        (("--dtype", "float31"), "no element type 'float31'"),
        (("--redop", "mean"), "no reduction 'mean'"),
        (("--algorithms", "magic"), "no algorithm 'magic'"),
        (("-b", "1M", "-e", "1K"), "less than -b"),
        (("-e", "12Q"), "is not a size"),
    ],
)
def test_a_wrong_option_is_said_once_before_any_rank_starts(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "-n", "2", *words])
    message = capsys.readouterr().err
    assert end.value.code == 2
    assert message.count("\n") == 1
    assert said in message


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    command = [sys.executable, "-m", "commlib", "bench", "all_reduce", "-n", "2", "--peers", "none", "-o", str(path)]
    with subprocess.Popen(
        [*command, "-f", "2", "--time", "60"], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        next(line for line in lines if line.strip().startswith("8 "))
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 130
    assert "# interrupted: not complete" in rest
    document = json.loads(path.read_text())
    assert document["complete"] is False
    assert document["rows"]
