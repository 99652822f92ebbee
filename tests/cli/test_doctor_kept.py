"""`commlib doctor`: what is kept on disk, and MPI, which an mpirun and an mpi4py of ours play."""

import json
import os
import stat
import sys
import time
from pathlib import Path

import pytest

from commlib.plan import shipped_plan, user_path
from commlib.plan.machine import fingerprint
from commlib.tools import failure
from commlib.tools.cli.doctor import kept, mpi
from commlib.tools.launch import launch
from tests.cli.calls import tells


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path):
    monkeypatch.setenv("COMMLIB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COMMLIB_BACKEND", "shm")
    for kind in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    return tmp_path


def test_the_cache_says_its_size_and_what_was_not_used_for_long(folders):
    assert "holds 0 files (0.0 MiB)" in kept.cache().detail
    for name in ("used", "unused"):
        (folders / "cache" / name).write_bytes(bytes(1 << 20))
    os.utime(folders / "cache" / "unused", (time.time() - (kept.STALE_DAYS + 1) * 86400,) * 2)
    tells(kept.cache(), "ok", "holds 2 files (2.0 MiB); 1 file (1.0 MiB) of it not used for 30 days", "delete these")


def test_a_cache_that_cannot_be_written_is_a_warning_with_the_variable(monkeypatch):
    for folder in ["/proc/none", "/dev/null"]:
        monkeypatch.setenv("COMMLIB_CACHE_DIR", folder)
        tells(kept.cache(), "warning", f"{folder} cannot be written", "COMMLIB_CACHE_DIR=FOLDER")


def written(text):
    path = user_path("shm", fingerprint("shm")["device"], 2)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_a_plan_of_the_user_says_how_well_its_fingerprint_fits():
    head = {**fingerprint("shm"), "backend": "shm", "kernel": "4.4.0"}
    path = written(json.dumps({**shipped_plan("shm").document, "fingerprint": head}))
    found = kept.plan()
    assert found.detail.startswith(f"{path} for 2 ranks: match ")
    assert ("kernel 4.4.0, here" in found.detail, found.remedy) == (True, "commlib tune -n 2")


def test_a_plan_that_cannot_be_read_is_told_with_its_fault(monkeypatch, folders):
    path = written("{")
    found = kept.plan()
    tells(found, "warning", str(path))
    tells(found, "warning", "it is ignored; plans/shm.json")
    monkeypatch.setenv("COMMLIB_PLAN", str(folders / "none.json"))
    tells(kept.plan(), "broken", "none.json", "correct or unset COMMLIB_PLAN")


def run(script, size=2):
    with Path(os.devnull).open("wb") as nowhere:
        return launch([sys.executable, "-c", script], size, prefix=True, stdout=nowhere, stderr=nowhere)


FAILING = "import os, sys, time; r = os.environ['RANK']; r == '0' and time.sleep(60); raise SystemExit('no luck')"


def test_the_launcher_keeps_the_errors_of_the_rank_that_failed_first_for_its_user_alone():
    assert run(FAILING) == 1
    found = failure.last()
    assert (found["ranks"], found["said"], found["stderr"]) == (2, "rank 1 exited with code 1", ["no luck"])
    assert stat.S_IMODE(failure.path().stat().st_mode) == 0o600
    tells(kept.last_failure(), "warning", "less than a minute ago: ", str(failure.path()))
    tells(kept.last_failure(), "warning", "… on 2 ranks, rank 1 exited with code 1: no luck")


@pytest.mark.slow
def test_only_a_job_that_fails_replaces_the_last_failure_and_an_old_one_is_no_warning():
    assert kept.last_failure().detail == "`commlib run` has kept none"
    run("raise SystemExit('first')", 1)
    assert (run("pass", 1), run("raise SystemExit(2)", 1)) == (0, 2)  # 2: the command line is wrong
    assert failure.last()["stderr"] == ["first"]
    run("raise SystemExit('second')", 1)
    assert failure.last()["stderr"] == ["second"]
    text = json.loads(failure.path().read_text())
    failure.path().write_text(json.dumps(text | {"time": text["time"] - 90_000}))
    tells(kept.last_failure(), "ok", "1 day ago: ")


@pytest.mark.slow
def test_a_place_that_cannot_be_written_costs_the_job_nothing(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/none")
    assert run("raise SystemExit(7)", 1) == 7
    assert failure.last() is None


def test_a_file_that_is_none_of_ours_is_no_failure():
    failure.path().parent.mkdir(parents=True)
    for text in ("", "[]", '{"time": 1}', "not JSON"):
        failure.path().write_text(text)
        assert failure.last() is None


def test_a_missing_mpirun_says_what_to_install_and_who_needs_it(monkeypatch, tmp_path):
    monkeypatch.setattr(mpi.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = mpi.launcher_and_library()
    tells(found, "missing", "no mpirun on PATH; needed only to start", "pip install mpi4py mpich")
