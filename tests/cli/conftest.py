"""Commands as a user runs them: in processes that start in no time, or in this one."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.calls import Run, exit_code


@pytest.fixture(scope="session")
def command(quick_python: Path) -> Run:
    """command(*words, NAME=value) runs commlib in a process with these variables, on 80 columns."""

    def command(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        line = [str(quick_python), "-m", "commlib", *words]
        environment = {**os.environ, "COLUMNS": "80", **variables}
        return subprocess.run(line, capture_output=True, text=True, timeout=110, check=False, env=environment)

    return command


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """call(*words) calls a command here, in a folder of its own, on 80 columns; returns code, output and errors."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code, output = exit_code(*map(str, words)), capsys.readouterr()
        return code, output.out, output.err

    return call
