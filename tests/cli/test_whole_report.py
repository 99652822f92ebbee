"""`commlib report`: steps that are kept and gone on with, and what its pages have."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from commlib.tools.cli import main
from commlib.tools.cli.report import command
from commlib.tools.cli.report.command import SCOPES, STEPS, Settings, is_done, report, why_failed
from commlib.tools.report.formats import json_text
from tests.cli.bench_documents import document, times
from tests.cli.calls import Run, interrupted

HERE = Settings("quick", 2, on_gpus=False)


def folder_of(path: Path, **documents: dict[str, Any]) -> Path:
    """Return a folder with these documents."""
    for name, found in documents.items():
        (path / f"{name}.json").write_text(json_text(found), encoding="utf-8")
    return path


def doctor(state: str) -> dict[str, Any]:
    head = {"schema": "commlib.doctor", "version": 1, "commlib": "0", "job": "shm", "runs": False}
    return head | {"findings": [{"topic": "mpi", "state": state, "detail": "~", "remedy": "", "needed": True}]}


@pytest.mark.slow
def test_a_step_is_done_with_a_whole_document_and_else_it_failed_and_says_why(monkeypatch, tmp_path, capsys) -> None:
    real, codes = subprocess.Popen, list[str]()
    monkeypatch.setattr(
        command.subprocess, "Popen", lambda words, **more: real([sys.executable, "-c", codes[-1]], **more)
    )
    write = f"from pathlib import Path; Path({str(tmp_path / 'plan.json')!r}).write_text("
    hangs = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    for code, limit_s, why in [
        ("import sys; sys.exit('commlib: no GPU')", 30.0, "commlib: no GPU"),
        ("import os; os.kill(os.getpid(), 9)", 30.0, "ended by SIGKILL"),
        (write + "'{\"complete\": false}')", 30.0, "it wrote no document"),
        (hangs, 0.2, "ended by SIGKILL"),
    ]:
        codes.append(code)
        monkeypatch.setitem(command.LIMIT_S, "quick", limit_s)
        assert not command.measure(tmp_path, HERE, ["plan"])
        assert why_failed(tmp_path / "plan.log") == why and not is_done(tmp_path, "plan")
    assert "did not end within 0.2 s" in (tmp_path / "plan.log").read_text(encoding="utf-8")
    codes.append(write + "'{\"complete\": true}'); raise SystemExit(1)")
    monkeypatch.setitem(command.LIMIT_S, "quick", 30.0)
    command.measure(tmp_path, HERE, ["plan"])
    assert is_done(tmp_path, "plan") and not (tmp_path / "plan.log").exists()
    assert capsys.readouterr().out.splitlines()[-1].startswith("plan         done in")


def test_the_rest_is_measured_after_a_failure_and_what_is_done_stays(monkeypatch, tmp_path) -> None:
    asked, made = [], document()

    def run(words: list[str], log: Path, limit_s: float) -> bool:
        asked.append(words[0])
        log.write_text("commlib: broke", encoding="utf-8")
        if words[0] == "bench":
            folder_of(log.parent, **{log.stem: made})
        return False

    monkeypatch.setattr(command, "run", run)
    words = ["-o", str(tmp_path / "r"), "--only", "correctness,collectives"]
    done = CliRunner().invoke(report, ["--quick", "-n", "2", *words])
    assert (done.exit_code, asked) == (1, ["bench", "test"])
    assert "Step correctness failed: commlib: broke" in (tmp_path / "r/summary.md").read_text(encoding="utf-8")
    asked.clear()
    CliRunner().invoke(report, words)
    assert asked == ["test"]
    assert CliRunner().invoke(report, ["--only", "nonsense", *words[:2]]).exit_code == 2


@pytest.mark.slow
def test_each_step_has_words_that_its_command_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.Command, "invoke", lambda self, context: None)
    for scope in SCOPES:
        for step in STEPS.values():
            for on_gpus in (False, True):
                main([*step.arguments(Settings(scope, 2, on_gpus)), "-o", "x.json"], standalone_mode=False)


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_the_next_run_goes_on(tmp_path: Path, quick_python: Path, command: Run) -> None:
    folder = tmp_path / "r"
    words = ("report", "--quick", "-o", str(folder), "--only")

    def begun(output: Any) -> bool:
        assert output.readline().startswith("metadata     done")
        time.sleep(0.3)  # the next step loads torch, which takes longer
        return True

    assert f"`commlib report --quick -o {folder} --only metadata,attention,plan` goes on" in interrupted(
        (*words, "metadata,attention,plan"), begun, quick_python
    )
    assert is_done(folder, "metadata") and not is_done(folder, "attention")
    done = command(*words, "metadata,plan,environment")
    assert [line.split()[:2] for line in done.stdout.splitlines()[:2]] == [["plan", "done"], ["environment", "done"]]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(f'<section id="{name}">' in page for name in ("summary", "metadata", "plan", "environment", "made"))


def test_the_first_screen_has_a_chart_who_is_the_fastest_and_what_is_wrong_then_come_collectives(tmp_path) -> None:
    found = document("broadcast", "all_reduce", complete=False, ended="interrupted")
    for row in found["rows"]:
        if row["algorithm"] == "mpich" and row["size"] == 8 and "time_us" in row:
            row["time_us"] = times(0.1)
    folder = folder_of(tmp_path, environment=doctor("broken"), collectives=found)
    (folder / "index.log").write_text("why\n", encoding="utf-8")
    texts = command.write_pages(folder, HERE)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    order = [page.index(part) for part in ("<svg", "2 ranks on shm, A CPU", "<pre", 'id="collectives"')]
    assert order == sorted(order) and page.index('id="environment"') > order[-1]
    assert texts[0][1].startswith("Collectives next to torch, mpich; faster than ours: ")
    text = " ".join(line for look, line in texts if look)
    for part in ("Step index failed: why", "mpi (broken)", "plan, correctness.", "not complete: interrupted"):
        assert part in text
    assert " ".join(command.command_line(["bench", "-n", "2"])) in (folder / "made.md").read_text(encoding="utf-8")


def test_without_matplotlib_a_page_has_its_tables_and_a_line(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("commlib.tools.report.chart.importlib.util.find_spec", lambda name: None)
    command.write_pages(folder_of(tmp_path, collectives=document()), HERE)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<svg" not in page and "pip install matplotlib" in page and "all_reduce " in page
