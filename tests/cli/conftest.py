"""Commands as a user runs them, in processes that start in no time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def bench(quick_python: Path) -> Run:
    def bench(*words: str, width: int = 80) -> subprocess.CompletedProcess[str]:
        command = [str(quick_python), "-m", "commlib", "bench", *words]
        environment = {**os.environ, "COLUMNS": str(width)}
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env=environment)

    return bench


@pytest.fixture(scope="session")
def tune(quick_python: Path) -> Run:
    def tune(*words: str, home: Path, width: int = 80) -> subprocess.CompletedProcess[str]:
        command = [str(quick_python), "-m", "commlib", "tune", *words]
        environment = {**os.environ, "COLUMNS": str(width), "XDG_CONFIG_HOME": str(home)}
        return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=environment)

    return tune
