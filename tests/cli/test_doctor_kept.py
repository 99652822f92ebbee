"""`commlib doctor` and what is kept on disk: the cache, the plan, and the last failure of a job."""

import json
import os
import resource
import stat
import sys
import time
from pathlib import Path

import pytest

from commlib import failure, jit
from commlib.cli.doctor import kept
from commlib.launch import launch
from commlib.plan import shipped_plan, user_path
from commlib.timing.machine import fingerprint

OLD_S = (kept.STALE_DAYS + 1) * 86400


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path):
    monkeypatch.setenv("COMMLIB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COMMLIB_BACKEND", "shm")
    for kind in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    return tmp_path


# The cache.


def test_the_cache_says_its_size_and_what_was_not_used_for_long(folders):
    assert "holds 0 files (0.0 MiB)" in kept.cache().detail
    for name in ("used", "unused"):
        (folders / "cache" / name).write_bytes(bytes(1 << 20))
    os.utime(folders / "cache" / "unused", (time.time() - OLD_S,) * 2)
    found = kept.cache()
    assert found.state == "ok"
    assert "holds 2 files (2.0 MiB); 1 file (1.0 MiB) of it not used for 30 days" in found.detail
    assert found.remedy == "delete these at any time"


@pytest.mark.parametrize("folder", ["/proc/none", "/dev/null"])
def test_a_cache_that_cannot_be_written_is_a_warning_with_the_variable(monkeypatch, folder):
    monkeypatch.setenv("COMMLIB_CACHE_DIR", folder)
    found = kept.cache()
    assert found.state == "warning"
    assert f"{folder} cannot be written" in found.detail
    assert "COMMLIB_CACHE_DIR=FOLDER" in found.remedy


def test_a_cache_on_a_full_disk_is_a_warning():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        found = kept.cache()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (found.state, "cannot be written: File too large" in found.detail) == ("warning", True)


def test_a_user_without_a_home_has_no_cache_and_is_told(monkeypatch):
    def cache_dir():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(jit, "cache_dir", cache_dir)
    found = kept.cache()
    assert (found.state, found.detail) == ("warning", "no folder: Could not determine home directory.")


# The plan.


def written(text):
    path = user_path("shm", fingerprint("shm")["device"], 2)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_a_shipped_plan_is_not_measured_here_and_names_the_command_that_does():
    found = kept.plan()
    assert found.detail == "plans/shm.json for 2 ranks: not measured on this machine"
    assert found.remedy == "commlib tune -n 2"


@pytest.mark.parametrize(("changes", "remedy"), [({}, ""), ({"kernel": "4.4.0"}, "commlib tune -n 2")])
def test_a_plan_of_the_user_says_how_well_its_fingerprint_fits(changes, remedy):
    head = {**fingerprint("shm"), "backend": "shm", **changes}
    path = written(json.dumps({**shipped_plan("shm").document, "fingerprint": head}))
    found = kept.plan()
    assert found.detail.startswith(f"{path} for 2 ranks: match ")
    assert ("kernel 4.4.0, here" in found.detail) == bool(changes)
    assert found.remedy == remedy


def test_a_plan_that_is_ignored_is_a_warning_with_its_fault():
    path = written("{")
    found = kept.plan()
    assert found.state == "warning"
    assert str(path) in found.detail
    assert "it is ignored; plans/shm.json" in found.detail


def test_a_named_plan_that_cannot_be_read_keeps_init_from_starting(monkeypatch, folders):
    monkeypatch.setenv("COMMLIB_PLAN", str(folders / "none.json"))
    found = kept.plan()
    assert (found.state, found.remedy) == ("broken", "correct or unset COMMLIB_PLAN")
    assert "none.json" in found.detail


# The last failure.


def run(script, size=2, prefix=True):
    with Path(os.devnull).open("wb") as nowhere:
        return launch([sys.executable, "-c", script], size, prefix=prefix, stdout=nowhere, stderr=nowhere)


FAILING = "import os, sys, time; r = os.environ['RANK']; r == '0' and time.sleep(60); raise SystemExit('no luck')"


def test_the_launcher_keeps_the_errors_of_the_rank_that_failed_first_for_its_user_alone():
    assert run(FAILING) == 1
    found = failure.last()
    assert (found["ranks"], found["said"], found["stderr"]) == (2, "rank 1 exited with code 1", ["no luck"])
    assert stat.S_IMODE(failure.path().stat().st_mode) == 0o600
    told = kept.last_failure()
    assert told.state == "warning"
    assert told.detail.startswith("less than a minute ago: ")
    assert told.detail.endswith("… on 2 ranks, rank 1 exited with code 1: no luck")
    assert str(failure.path()) in told.remedy


def test_a_job_that_ends_well_leaves_the_last_failure_as_it_is():
    assert kept.last_failure().detail == "`commlib run` has kept none"
    run("raise SystemExit('first')", 1)
    assert run("pass", 1) == 0
    assert failure.last()["stderr"] == ["first"]
    run("raise SystemExit('second')", 1)
    assert failure.last()["stderr"] == ["second"]


def test_a_command_line_that_is_wrong_is_not_kept_and_an_old_failure_is_no_warning():
    assert run("raise SystemExit(2)", 1) == 2
    assert failure.last() is None
    run("raise SystemExit('first')", 1)
    text = json.loads(failure.path().read_text())
    failure.path().write_text(json.dumps(text | {"time": text["time"] - 90_000}))
    assert kept.last_failure().state == "ok"
    assert kept.last_failure().detail.startswith("1 day ago: ")


def test_without_prefix_the_fate_of_the_rank_is_kept_alone():
    run("import os; os.abort()", 1, prefix=False)
    assert (failure.last()["said"], failure.last()["stderr"]) == ("rank 0 was killed by SIGABRT", [])


def test_long_errors_are_cut():
    run("import sys; [sys.stderr.write(f'{n} ' + 'x' * 2000 + '\\n') for n in range(50)]; sys.exit(3)", 1)
    lines = failure.last()["stderr"]
    assert [line.split()[0] for line in lines] == [str(n) for n in range(30, 50)]
    assert {len(line) for line in lines} == {failure.LINE_BYTES}


def test_a_place_that_cannot_be_written_costs_the_job_nothing(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/none")
    assert run("raise SystemExit(7)", 1) == 7
    assert failure.last() is None


@pytest.mark.parametrize("text", ["", "[]", '{"time": 1}', "not JSON"])
def test_a_file_that_is_none_of_ours_is_no_failure(text):
    failure.path().parent.mkdir(parents=True)
    failure.path().write_text(text)
    assert failure.last() is None


@pytest.mark.parametrize(("seconds", "said"), [
    (5, "less than a minute"), (60, "1 minute"), (7300, "2 hours"), (90_000, "1 day"),
])  # fmt: skip
def test_an_age_is_told_in_the_largest_unit(seconds, said):
    assert kept._age(seconds) == said
