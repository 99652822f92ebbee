"""`commlib report`: stages that are kept and gone on with, and what bounds a call."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from threading import Event
from typing import Any

import click
import pytest
from click.testing import CliRunner

from commlib.cli import main
from commlib.cli.report import SCOPES, STAGES, Settings, baseline, run
from commlib.cli.report.bottleneck import BYTES as BANDWIDTH
from commlib.cli.report.bottleneck import CALL, FIXED, OPEN, Call, bottleneck, tries
from commlib.cli.report.command import report
from commlib.cli.report.folder import DONE, FAILED, INTERRUPTED, STATE, Folder
from commlib.cli.report.sections import SECTIONS
from commlib.report.packed import unpacked
from commlib.report.page import markdown
from tests.cli.bench_documents import document
from tests.cli.report_folders import doctor, ended, finding, kept

ROOT = Path(__file__).resolve().parents[2]

# What bounds a call.

WINS, LOSES, LEVEL = ({"ratio": r, "low": r * 0.99, "high": r * 1.01} for r in (1.5, 0.5, 0.98))


@pytest.mark.parametrize(
    ("figures", "what", "said"),
    [
        ({"floor_us": 9.0, "need_us": 8.0}, BANDWIDTH, "the floor takes 9.00 µs, 90 % of it"),
        ({"floor_us": 9.0, "need_us": 8.0, "versus": LOSES}, BANDWIDTH, "90 %"),
        ({"floor_us": 5.0, "need_us": 5.0, "versus": LOSES, "beside": "torch"}, CALL, "torch takes 0.50 of its time"),
        ({"floor_us": 5.0, "need_us": 5.0, "versus": LEVEL}, OPEN, "50 %"),
        ({"floor_us": 9.0, "need_us": 1.0}, FIXED, "a floor of as many bytes takes 9.00 µs, too; its bytes need 1.00"),
        (
            {"floor_us": 3.0, "need_us": 1.0, "least_us": 6.0},
            FIXED,
            "the smallest call takes 6.00 µs; its bytes need 1.00 µs",
        ),
        ({"floor_us": 3.0, "need_us": 1.0, "least_us": 10.0}, FIXED, "the smallest call; its bytes"),
        ({"floor_us": 3.0, "need_us": 1.0, "least_us": 4.0}, OPEN, "30 %"),
        ({"floor_us": 7.0, "need_us": 7.0, "least_us": 10.0}, OPEN, "70 %"),
        ({"least_us": 9.0}, OPEN, "no floor is measured"),
    ],
)
def test_a_bottleneck_is_named_by_its_rule_and_the_figures_that_led_to_it(
    figures: dict[str, Any], what: str, said: str
) -> None:
    found = bottleneck(Call("series", "call", 10.0, **figures))
    assert found[0] == what
    assert said in found[1]


def test_less_than_five_percent_is_level_however_sure() -> None:
    calls = [Call("", "", 1.0, versus=versus) for versus in (WINS, LOSES, LEVEL, None)]
    assert [call.outcome for call in calls] == ["faster", "slower", "level", ""]
    unsure = {"ratio": 1.5, "low": 0.9, "high": 2.0}
    assert Call("", "", 1.0, versus=unsure).outcome == "level"


def test_what_to_try_names_the_calls_once_for_each_bottleneck() -> None:
    calls = [Call("s", f"n {n}", 10.0, floor_us=9.0, need_us=9.0) for n in range(5)]
    (said,) = tries(calls)
    assert said.startswith(f"{BANDWIDTH} (n 0; n 1; n 2 and 2 more): ")


@pytest.mark.parametrize("file", ["profile_h200", "profile_xeon_2_cores"])
def test_every_kept_profile_has_a_line_for_each_call_of_ours(file: str) -> None:
    for found in unpacked(json.loads((ROOT / f"benchmarks/results/{file}.json").read_text(encoding="utf-8"))):
        calls = list(SECTIONS["index"].calls(found))
        ours = {(row["variant"], row["n"], row["dim"], row["pattern"], row["heat"]) for row in found["rows"]}
        assert len(calls) == len(ours)
        large = [call for call in calls if call.num_bytes and call.num_bytes > 64 << 20 and "H200" in str(found)]
        assert {bottleneck(call)[0] for call in large} <= {BANDWIDTH}


def test_calls_of_collectives_are_the_plan_s_choices_beside_the_best_other() -> None:
    calls = list(SECTIONS["collectives"].calls(document("all_reduce", "broadcast")))
    assert Counter(call.series.split(",")[0] for call in calls) == {"all_reduce": 8, "broadcast": 8}
    assert {call.beside for call in calls} == {"mpich"}
    least, *_, largest = calls[:8]
    assert (least.num_bytes, largest.num_bytes) == (8, 16 << 20)
    assert bottleneck(least)[0] == FIXED
    assert largest.share == pytest.approx(largest.need_us / largest.time_us)


def test_only_what_moved_beyond_the_noise_of_others_has_changed() -> None:
    before, now = {"collectives": document()}, {"collectives": document()}
    for row in now["collectives"]["rows"]:
        if (row["algorithm"], row["size"], row["in_place"]) == ("shm_twoshot", 4096, False):
            row["time_us"] = {name: 2 * value for name, value in row["time_us"].items()}
    before["environment"] = doctor(finding("mpi", "ok", "here"))
    now["environment"] = doctor(finding("mpi", "broken", "here"))
    now["collectives"]["fingerprint"]["cpu"] = "Another CPU"
    text = markdown(baseline.section("old", before, now))
    assert "Of commlib's calls that are in both: 63 same, 1 worse." in text
    assert re.search(r"all_reduce, float, sum, 4K \| shm_twoshot .* 2.00 \| worse", text)
    assert "Times are not comparable, as the machines differ: cpu A CPU / Another CPU" in text
    assert "- mpi: broken, before ok" in text


@pytest.mark.parametrize("stage", ["index", "store"])
def test_a_profile_has_not_changed_since_itself(stage: str) -> None:
    found = unpacked(json.loads((ROOT / "benchmarks/results/profile_h200.json").read_text(encoding="utf-8")))[0]
    text = markdown(baseline.section("old", {stage: found}, {stage: found}))
    ours = sum(row["role"] == "ours" and bool(row["time_us"]) for row in found["rows"])
    assert f"Of commlib's calls that are in both: {ours} same." in text


# Runs.


def stage_of(code: str, limit_s: float = 30.0) -> tuple[dict[str, Any], Any]:
    """Run a stage whose command is a program of ours."""
    with pytest.MonkeyPatch.context() as patch:
        real = subprocess.Popen
        patch.setattr(run.subprocess, "Popen", lambda words, **more: real([sys.executable, "-c", code], **more))
        return run.stage(["x"], run.Wait(time.monotonic() + limit_s, Event(), lambda: None))


def test_a_document_is_found_among_what_a_library_prints() -> None:
    found, read = stage_of("print('NCCL version 2.27'); print('{\\n \"a\": 1\\n}'); print('bye')")
    assert (found["state"], read) == (DONE, {"a": 1})


def test_a_stage_is_done_with_its_document_whatever_its_exit_code() -> None:
    found, read = stage_of("print('{\"complete\": true}'); raise SystemExit(1)")
    assert (found["state"], found["code"], read) == (DONE, 1, {"complete": True})


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("import sys; sys.exit('commlib: no GPU')", 1, "commlib: no GPU"),
        ("print('no json')", 0, "it printed no document"),
        ("print('[]')", 0, "it printed no document"),
        ("import os; os.kill(os.getpid(), 9)", -9, "it printed no document"),
        ("print('{\"complete\": false}')", 0, "it printed no document"),
    ],
)
def test_a_stage_without_a_whole_document_failed_and_says_why(code: str, exit_code: int, said: str) -> None:
    found, _ = stage_of(code)
    assert (found["state"], found["code"], found["said"]) == (FAILED, exit_code, said)


def test_a_stage_that_hangs_is_ended_with_all_it_started() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    found, _ = stage_of(code, limit_s=0.2)
    assert (found["state"], found["code"], found["said"]) == (FAILED, -9, "no end in the time that it has")


def test_the_rest_is_measured_after_a_failure_and_what_is_done_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def stage(words: list[str], wait: Any) -> tuple[dict[str, Any], Any]:
        asked.append(words[0])
        return ended(words[0], FAILED if words[0] == "test" else DONE, said="broke"), None

    monkeypatch.setattr(run, "stage", stage)
    words = [
        "--quick",
        "-n",
        "2",
        "-o",
        str(tmp_path / "r"),
        "--only",
        "environment,correctness,index,plan",
        "--skip",
        "index",
    ]
    done = CliRunner().invoke(report, words)
    assert (done.exit_code, asked) == (1, ["doctor", "test", "plan"])
    assert "correctness  failed in 2 s: broke" in done.output
    assert "Stage correctness failed (exit code 0): broke" in (tmp_path / "r/summary.md").read_text(encoding="utf-8")
    asked.clear()
    done = CliRunner().invoke(report, ["-o", str(tmp_path / "r"), "--only", "environment,correctness"])
    assert asked == ["test"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--all"], "has scope quick, and all is asked for"),
        (["-n", "3"], "has ranks 2, and 3 is asked for"),
        (["--only", "nonsense"], "no stage 'nonsense'; there are environment, "),
    ],
)
def test_a_folder_goes_on_with_its_own_settings_alone(tmp_path: Path, words: list[str], said: str) -> None:
    kept(tmp_path, "environment")
    done = CliRunner().invoke(report, [*words, "-o", str(tmp_path)])
    assert done.exit_code == 2 and said in done.output


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    done = CliRunner().invoke(report, ["-o", str(tmp_path)])
    assert done.exit_code == 2 and "has files that are not of a report" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    with pytest.raises(ValueError, match=f"has no {STATE}"):
        CliRunner().invoke(report, ["--show", "-o", str(tmp_path)], catch_exceptions=False)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", STAGES)
def test_each_stage_has_words_that_its_command_takes(monkeypatch: pytest.MonkeyPatch, scope: str, name: str) -> None:
    monkeypatch.setattr(click.Command, "invoke", lambda self, context: None)
    for on_gpus in (False, True):
        main(STAGES[name].words(Settings(scope, 2, on_gpus)), standalone_mode=False)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, quick_python: Path) -> Path:
    """A folder with two real stages, of which Ctrl-C ended a third."""
    folder = tmp_path_factory.mktemp("report") / "r"
    words = [str(quick_python), "-m", "commlib", "report", "--quick", "-o", str(folder)]
    process = subprocess.Popen(
        [*words, "--only", "metadata,radix,plan,comm,paths"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("metadata     done")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"interrupted; `commlib report -o {folder}` goes on" in errors
    assert Folder(folder).stages["radix"]["state"] == INTERRUPTED
    done = subprocess.run(
        [*words, "--only", "metadata,comm,paths,plan"], capture_output=True, text=True, timeout=90, check=False
    )
    begun = [line.split()[:2] for line in done.stdout.splitlines()[:3]]
    assert begun == [["comm", "done"], ["paths", "done"], ["plan", "done"]]
    assert done.returncode == 1, "the stage that was interrupted is still to be done"
    return folder


def test_ctrl_c_keeps_what_is_done_and_the_next_run_goes_on(measured: Path) -> None:
    text = (measured / "summary.md").read_text(encoding="utf-8")
    assert "Stage radix interrupted" in text
    assert "Not measured: environment, correctness, index, store, attention, prefill, collectives." in text
    assert "the longest phase is " in (measured / "comm.md").read_text(encoding="utf-8")
    assert "Plan in force: init() takes plans/shm.json" in text
    assert SECTIONS["metadata"].kind.read(measured / "metadata.json")["complete"]


def test_the_pages_are_made_again_from_the_documents_alone(measured: Path) -> None:
    page = measured / "report.html"
    before = page.read_text(encoding="utf-8")
    page.unlink()
    state = (measured / STATE).read_text(encoding="utf-8")
    assert CliRunner().invoke(report, ["--show", "-o", str(measured)]).exit_code == 1  # one stage is not done
    assert page.read_text(encoding="utf-8") == before
    assert (measured / STATE).read_text(encoding="utf-8") == state


def test_nsight_s_commands_are_printed_and_kept_where_the_tools_are_not(
    measured: Path, quick_python: Path, tmp_path: Path
) -> None:
    words = [str(quick_python), "-m", "commlib", "report", "-o", str(measured), "--only", "plan", "--ncu"]
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False, env=environment)
    looks = Folder(measured).state["looks"]
    assert [each["command"].split()[0] for each in looks] == 5 * ["ncu"]
    assert all("ncu is not here" in each["said"] for each in looks)
    assert all(each["command"] in done.stdout for each in looks)
    assert looks[0]["command"] in (measured / "made.md").read_text(encoding="utf-8")
