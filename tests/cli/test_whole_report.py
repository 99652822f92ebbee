"""`commlib report`: steps that are kept and gone on with, what changed since another one, and what its pages have."""

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
from commlib.tools.cli.report import pages, run
from commlib.tools.cli.report.command import report
from commlib.tools.cli.report.run import DONE, FAILED, INTERRUPTED, STATE, Ended, Folder
from commlib.tools.cli.report.steps import SCOPES, STEPS, Settings
from tests.cli.bench_documents import document, times
from tests.cli.calls import Run, interrupted


def folder_of(path: Path, **documents: dict[str, Any] | None) -> Folder:
    """Return a folder whose steps are done, with these documents."""
    folder = Folder(path, Settings("quick", 2, on_gpus=False))
    for name, found in documents.items():
        folder.save(name, ended(name), found)
    return folder


def ended(name: str, state: Any = DONE, code: int = 0, why: str = "") -> Ended:
    return Ended(state, name, code, 1.5, why, "2026-01-01T00:00:00+00:00")


def doctor(state: str) -> dict[str, Any]:
    finding = {"topic": "mpi", "state": state, "detail": "~", "remedy": "", "needed": True}
    return {
        "schema": "commlib.doctor",
        "version": 1,
        "commlib": "0",
        "job": "shm",
        "runs": False,
        "findings": [finding],
    }


def step_of(code: str, limit_s: float = 30.0) -> tuple[Ended, Any]:
    """Run a step whose command is a program of ours."""
    with pytest.MonkeyPatch.context() as patch:
        real = subprocess.Popen
        patch.setattr(run.subprocess, "Popen", lambda words, **more: real([sys.executable, "-c", code], **more))
        return run._step(["x"], time.monotonic() + limit_s, Event(), lambda: None)


@pytest.mark.slow
def test_a_step_is_done_with_a_whole_document_and_else_it_failed_and_says_why() -> None:
    step, read = step_of("print('NCCL 2.27'); print('{\"complete\": true}'); print('bye'); raise SystemExit(1)")
    assert (step.state, step.code, read) == (DONE, 1, {"complete": True})
    for code, exit_code, why in [
        ("import sys; sys.exit('commlib: no GPU')", 1, "commlib: no GPU"),
        ("import os; os.kill(os.getpid(), 9)", -9, "it printed no document"),
        ("print('{\"complete\": false}')", 0, "it printed no document"),
    ]:
        step, _ = step_of(code)
        assert (step.state, step.code, step.why) == (FAILED, exit_code, why)
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    step, _ = step_of(code, limit_s=0.2)
    assert (step.state, step.code, "no end" in step.why) == (FAILED, -9, True)


def test_the_rest_is_measured_after_a_failure_and_what_is_done_stays(monkeypatch, tmp_path) -> None:
    asked = []

    def step(words: list[str], *rest: Any) -> tuple[Ended, Any]:
        asked.append(words[0])
        return ended(words[0], FAILED if words[0] == "test" else DONE, why="broke"), None

    monkeypatch.setattr(run, "_step", step)
    words = "--quick -n 2 --only environment,correctness,index,plan --skip index"
    done = CliRunner().invoke(report, [*words.split(), "-o", str(tmp_path / "r")])
    assert (done.exit_code, asked) == (1, ["doctor", "test", "plan"])
    assert "correctness failed" in (tmp_path / "r/summary.md").read_text(encoding="utf-8")
    asked.clear()
    CliRunner().invoke(report, ["-o", str(tmp_path / "r"), "--only", "environment,correctness"])
    assert asked == ["test"]


def test_a_folder_goes_on_with_its_settings_and_one_of_something_else_is_left_alone(tmp_path: Path) -> None:
    folder_of(tmp_path, environment=None)
    for words in (["--all"], ["-n", "3"], ["--only", "nonsense"]):
        assert CliRunner().invoke(report, [*words, "-o", str(tmp_path)]).exit_code == 2
    (tmp_path / STATE).rename(tmp_path / "mine")
    assert CliRunner().invoke(report, ["-o", str(tmp_path)]).exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    with pytest.raises(ValueError, match=STATE):
        CliRunner().invoke(report, ["--show", "-o", str(tmp_path)], catch_exceptions=False)


@pytest.mark.slow
def test_each_step_has_words_that_its_command_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.Command, "invoke", lambda self, context: None)
    for scope in SCOPES:
        for step in STEPS.values():
            for on_gpus in (False, True):
                main(step.arguments(Settings(scope, 2, on_gpus)), standalone_mode=False)


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_the_next_run_goes_on(tmp_path: Path, quick_python: Path, command: Run) -> None:
    folder = tmp_path / "r"
    words = ("report", "--quick", "-o", str(folder), "--only")

    def begun(output: Any) -> bool:
        assert output.readline().startswith("metadata     done")
        time.sleep(0.5)
        return True

    assert f"commlib report -o {folder}" in interrupted((*words, "metadata,radix,plan"), begun, quick_python)
    assert {name: of.state for name, of in Folder(folder).ended.items()} == {"metadata": DONE, "radix": INTERRUPTED}
    done = command(*words, "metadata,comm,paths,plan")
    assert [line.split()[:2] for line in done.stdout.splitlines()[:3]] == [
        ["comm", "done"],
        ["paths", "done"],
        ["plan", "done"],
    ]
    assert done.returncode == 1, "the step that was interrupted is still to be done"


def test_the_first_screen_has_a_chart_who_is_the_fastest_and_what_is_wrong_then_come_collectives(tmp_path) -> None:
    found = document("broadcast", "all_reduce", complete=False, ended="interrupted")
    for row in found["rows"]:
        if row["algorithm"] == "mpich" and row["size"] == 8 and "time_us" in row:
            row["time_us"] = times(0.1)
    folder = folder_of(tmp_path, environment=doctor("broken"), collectives=found)
    folder.save("index", ended("index", FAILED, -9, "why"), None)
    summary = pages.write_pages(folder)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    order = [page.index(part) for part in ("<svg", "all_reduce, 2 ranks on A", "<table", 'id="collectives"')]
    assert order == sorted(order) and page.index('id="environment"') > order[-1]
    counts, lost, _ = summary.tables
    assert (counts.items[0]["commlib"], counts.items[0]["another library"]) == ("14", "2")
    assert {row["call"] for row in lost.items} == {
        "all_reduce, float, sum, 8, in place",
        "broadcast, float, root 0, 8, in place",
    }
    assert {row["fastest"] for row in lost.items} == {"mpich"}
    text = " ".join(line for look, line in summary.text if look)
    for part in ("index failed (exit code -9): why", "mpi (broken)", "correctness, comm, paths, store,"):
        assert part in text
    assert "interrupted: not complete" in page


def test_without_matplotlib_a_page_has_its_tables_and_a_line(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("commlib.tools.report.chart.importlib.util.find_spec", lambda name: None)
    pages.write_pages(folder_of(tmp_path, collectives=document()))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<svg" not in page and "pip install matplotlib" in page and "<td" in page
