"""The commands on a machine with GPUs, as a newcomer types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def commlib(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "commlib", *words], capture_output=True, text=True, timeout=110, check=False
    )


def test_bench_measures_gpus_and_finds_nothing_wrong() -> None:
    done = commlib("bench", "all_reduce", "-n", "2", "-b", "1K", "-e", "64K", "--time", "5", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["config"]["backend"] == "nccl"
    assert found["out_of_bounds"] == {"count": 0, "okay": True}


def test_doctor_says_what_the_gpu_backend_has() -> None:
    findings = json.loads(commlib("doctor", "--json").stdout)
    (backend,) = [finding for finding in findings if finding["topic"] == "gpu backend"]
    assert backend["state"] == "ok", backend
    assert "nccl4py" in backend["detail"]


def test_build_takes_the_architecture_of_the_gpus_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMLIB_CACHE_DIR", str(tmp_path))
    for compiled in (True, False):
        done = commlib("build", "--world", "2", "--dtype", "bfloat16")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("0 compiled") != compiled, done.stdout
