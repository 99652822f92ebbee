"""`commlib report`: stages that are kept and gone on with, what bounds a call, and pages that are text."""

import re
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any

import click
import pytest
from click.testing import CliRunner

from commlib.tools.cli import main
from commlib.tools.cli.report import SCOPES, STAGES, Settings, baseline, run
from commlib.tools.cli.report.bottleneck import BYTES as BANDWIDTH
from commlib.tools.cli.report.bottleneck import CALL, FIXED, OPEN, Call, bottleneck
from commlib.tools.cli.report.command import report
from commlib.tools.cli.report.folder import DONE, FAILED, INTERRUPTED, STATE, Folder
from commlib.tools.cli.report.pages import write_pages
from commlib.tools.cli.report.sections import SECTIONS
from commlib.tools.report.formats import CODE
from commlib.tools.report.page import markdown
from tests.cli.bench_documents import document
from tests.cli.calls import Run, interrupted

EVIL = "<script>alert(1)</script>|`*_[a](javascript:b)"
QUICK = Settings("quick", 2, on_gpus=False)


def kept(folder: Path, **documents: dict[str, Any] | None) -> Folder:
    """Return a folder whose stages are done, with these documents."""
    made = Folder(folder, QUICK)
    for name, found in documents.items():
        made.keep(name, ended(name), found)
    return made


def ended(name: str, state: str = DONE, code: int = 0, said: str = "") -> dict[str, Any]:
    created = "2026-01-01T00:00:00+00:00"
    return {"state": state, "command": name, "code": code, "seconds": 1.5, "said": said, "created": created}


def doctor(*findings: dict[str, Any], runs: bool = True) -> dict[str, Any]:
    head = {"schema": "commlib.doctor", "version": 1, "commlib": "0.1.0", "job": "shm"}
    return {**head, "runs": runs, "findings": list(findings)}


def finding(topic: str, state: str, detail: str, remedy: str = "") -> dict[str, Any]:
    return {"topic": topic, "state": state, "detail": detail, "remedy": remedy, "table": [], "needed": True}


WINS, LOSES, LEVEL = ({"ratio": r, "low": r * 0.99, "high": r * 1.01} for r in (1.5, 0.5, 0.98))


def test_a_bottleneck_is_named_by_its_rule_and_less_than_five_percent_is_level() -> None:
    for figures, what, said in [
        ({"floor_us": 9.0, "need_us": 8.0}, BANDWIDTH, "the floor takes 9.00 µs, 90 % of it"),
        ({"floor_us": 5.0, "need_us": 5.0, "versus": LOSES, "beside": "torch"}, CALL, "torch takes 0.50 of its time"),
        ({"floor_us": 5.0, "need_us": 5.0, "versus": LEVEL}, OPEN, "50 %"),
        ({"floor_us": 9.0, "need_us": 1.0}, FIXED, "a floor of as many bytes takes 9.00 µs, too; its bytes need 1.00"),
        ({"floor_us": 3.0, "need_us": 1.0, "least_us": 6.0}, FIXED, "the smallest call takes 6.00 µs"),
        ({"least_us": 9.0}, OPEN, "no floor is measured"),
    ]:
        found = bottleneck(Call("series", "call", 10.0, **figures))
        assert (found[0], said in found[1]) == (what, True), found
    unsure = {"ratio": 1.5, "low": 0.9, "high": 2.0}
    calls = [Call("", "", 1.0, versus=versus) for versus in (WINS, LOSES, LEVEL, unsure, None)]
    assert [call.outcome for call in calls] == ["faster", "slower", "level", "level", ""]


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


def stage_of(code: str, limit_s: float = 30.0) -> tuple[dict[str, Any], Any]:
    """Run a stage whose command is a program of ours."""
    with pytest.MonkeyPatch.context() as patch:
        real = subprocess.Popen
        patch.setattr(run.subprocess, "Popen", lambda words, **more: real([sys.executable, "-c", code], **more))
        return run.stage(["x"], run.Wait(time.monotonic() + limit_s, Event(), lambda: None))


@pytest.mark.slow
def test_a_stage_is_done_with_a_whole_document_and_else_it_failed_and_says_why() -> None:
    found, read = stage_of("print('NCCL 2.27'); print('{\"complete\": true}'); print('bye'); raise SystemExit(1)")
    assert (found["state"], found["code"], read) == (DONE, 1, {"complete": True})
    for code, exit_code, said in [
        ("import sys; sys.exit('commlib: no GPU')", 1, "commlib: no GPU"),
        ("import os; os.kill(os.getpid(), 9)", -9, "it printed no document"),
        ("print('{\"complete\": false}')", 0, "it printed no document"),
    ]:
        found, _ = stage_of(code)
        assert (found["state"], found["code"], found["said"]) == (FAILED, exit_code, said)
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    found, _ = stage_of(code, limit_s=0.2)
    assert (found["state"], found["code"], found["said"]) == (FAILED, -9, "no end in the time that it has")


def test_the_rest_is_measured_after_a_failure_and_what_is_done_is_kept(monkeypatch, tmp_path) -> None:
    asked = []

    def stage(words: list[str], wait: Any) -> tuple[dict[str, Any], Any]:
        asked.append(words[0])
        return ended(words[0], FAILED if words[0] == "test" else DONE, said="broke"), None

    monkeypatch.setattr(run, "stage", stage)
    words = "--quick -n 2 --only environment,correctness,index,plan --skip index"
    done = CliRunner().invoke(report, [*words.split(), "-o", str(tmp_path / "r")])
    assert (done.exit_code, asked) == (1, ["doctor", "test", "plan"])
    assert "correctness  failed in 2 s: broke" in done.output
    assert "Stage correctness failed (exit code 0): broke" in (tmp_path / "r/summary.md").read_text(encoding="utf-8")
    asked.clear()
    done = CliRunner().invoke(report, ["-o", str(tmp_path / "r"), "--only", "environment,correctness"])
    assert asked == ["test"]


def test_a_folder_goes_on_with_its_own_settings_alone(tmp_path: Path) -> None:
    for words, said in [
        (["--all"], "has scope quick, and all is asked for"),
        (["-n", "3"], "has ranks 2, and 3 is asked for"),
        (["--only", "nonsense"], "no stage 'nonsense'; there are environment, "),
    ]:
        kept(tmp_path, environment=None)
        done = CliRunner().invoke(report, [*words, "-o", str(tmp_path)])
        assert done.exit_code == 2 and said in done.output


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    done = CliRunner().invoke(report, ["-o", str(tmp_path)])
    assert done.exit_code == 2 and "has files that are not of a report" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    with pytest.raises(ValueError, match=f"has no {STATE}"):
        CliRunner().invoke(report, ["--show", "-o", str(tmp_path)], catch_exceptions=False)


@pytest.mark.slow
def test_each_stage_has_words_that_its_command_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for scope in SCOPES:
        for name in STAGES:
            monkeypatch.setattr(click.Command, "invoke", lambda self, context: None)
            for on_gpus in (False, True):
                main(STAGES[name].words(Settings(scope, 2, on_gpus)), standalone_mode=False)


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_the_next_run_goes_on(tmp_path: Path, quick_python: Path, command: Run) -> None:
    folder = tmp_path / "r"
    words = ("report", "--quick", "-o", str(folder), "--only")

    def begun(output: Any) -> bool:
        assert output.readline().startswith("metadata     done")
        time.sleep(0.5)
        return True

    said = interrupted((*words, "metadata,radix,plan,comm,paths"), begun, quick_python)
    assert f"interrupted; `commlib report -o {folder}` goes on" in said
    assert Folder(folder).stages["radix"]["state"] == INTERRUPTED
    done = command(*words, "metadata,comm,paths,plan")
    stages = [line.split()[:2] for line in done.stdout.splitlines()[:3]]
    assert stages == [["comm", "done"], ["paths", "done"], ["plan", "done"]]
    assert done.returncode == 1, "the stage that was interrupted is still to be done"
    text = (folder / "summary.md").read_text(encoding="utf-8")
    assert "Stage radix interrupted" in text
    assert "Not measured: environment, correctness, index, store, attention, prefill, collectives." in text
    assert "the longest phase is " in (folder / "comm.md").read_text(encoding="utf-8")
    assert "Plan in force: init() takes plans/shm.json" in text
    assert SECTIONS["metadata"].kind.read(folder / "metadata.json")["complete"]


def test_what_comes_from_outside_is_text_in_every_page(tmp_path: Path) -> None:
    evil = document("all_reduce", "barrier", notes=[EVIL], ended=EVIL, complete=False)
    evil["fingerprint"]["cpu"] = EVIL
    found = [finding(EVIL, "warning", EVIL, EVIL), finding("python", "broken", "gone")]
    found.append(finding("last failure", "warning", "a job"))
    folder = kept(tmp_path, environment=doctor(*found, runs=False), collectives=evil)
    folder.keep("index", ended("index", FAILED, -9, EVIL), None)
    write_pages(folder)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<script") == 1
    assert re.search(r"(?:src|href)=.?(?:https?:)?//", page) is None, "and nothing is fetched"
    assert "url(" not in page and "@import" not in page and "fetch(" not in page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for name in ("summary", "environment", "collectives"):
        text = re.sub(CODE, "", (tmp_path / f"{name}.md").read_text(encoding="utf-8"))
        assert "](javascript" not in text
        assert re.search(r"(?<!\\)<script", text) is None
