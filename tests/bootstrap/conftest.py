import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from commlib.bootstrap.mpi import LAUNCHERS, LOCAL_RANKS
from tests.bootstrap import launched
from tests.bootstrap.processes import Running

ROOT = Path(__file__).parents[2]
PROGRAM = launched.__file__
LAUNCHED_BY = ("COMMLIB_", "SLURM_", "TORCHELASTIC_")
LAUNCHED = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", *LOCAL_RANKS}
LAUNCHED |= {name for pair in LAUNCHERS.values() for name in pair}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in list(os.environ):
        if name in LAUNCHED or name.startswith(LAUNCHED_BY):
            monkeypatch.delenv(name)


@pytest.fixture
def launch(tmp_path):
    """launch(launcher, *how, python=…) runs launched.py under a launcher's command; returns what it printed."""

    def launch(command, *how, python=sys.executable, environ=None, timeout_s=60, fails=False):
        process = subprocess.Popen(
            [*map(str, command), *([str(python), PROGRAM, str(tmp_path), *how] if how else [])],
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output = process.communicate(timeout=timeout_s)[0]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        assert (process.returncode != 0) == fails, output
        return output

    return launch


@pytest.fixture
def start():
    """start(function, *arguments, user=None) runs it in a process that ends with the test."""
    running = []

    def start(function, *arguments, user=None):
        running.append(Running(function, *arguments, user=user))
        return running[-1]

    yield start
    for process in running:
        process.end()


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
