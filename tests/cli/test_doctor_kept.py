"""`commlib doctor`: what is kept on disk, and MPI, which an mpirun and an mpi4py of ours play."""

import json
import os
import time

import pytest

from commlib.plan import shipped_plan, user_path
from commlib.plan.machine import fingerprint
from commlib.tools.cli.doctor import kept, mpi
from tests.cli.calls import tells


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path):
    monkeypatch.setenv("COMMLIB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COMMLIB_BACKEND", "shm")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
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


def test_a_missing_mpirun_says_what_to_install_and_who_needs_it(monkeypatch, tmp_path):
    monkeypatch.setattr(mpi.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = mpi.launcher_and_library()
    tells(found, "missing", "no mpirun on PATH; needed only to start", "pip install mpi4py mpich")
