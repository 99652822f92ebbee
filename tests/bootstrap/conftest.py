import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from commlib.bootstrap.mpi import LAUNCHERS, LOCAL_RANKS

PROGRAM = Path(__file__).with_name("rank_program.py")
ROOT = PROGRAM.parents[2]
LAUNCHED_BY = ("COMMLIB_", "SLURM_", "TORCHELASTIC_")
LAUNCHED = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    *LOCAL_RANKS,
}
LAUNCHED |= {name for pair in LAUNCHERS.values() for name in pair}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in list(os.environ):
        if name in LAUNCHED or name.startswith(LAUNCHED_BY):
            monkeypatch.delenv(name)


class Program:
    """Runs rank_program.py under a launcher, or as plain processes with a given environment."""

    def __init__(self, report_dir):
        self.report_dir = report_dir

    def command(self, *steps):
        return [sys.executable, str(PROGRAM), str(self.report_dir), *steps]

    def run(self, *environs, command, timeout_s=60):
        """Start the command once per environment; return the exit codes and what all of them wrote."""
        processes = [
            subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for environ in environs
        ]
        try:
            output = "".join(process.communicate(timeout=timeout_s)[0] for process in processes)
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate()
        return [process.returncode for process in processes], output

    def report(self, rank):
        return json.loads((self.report_dir / f"{rank}.json").read_text())


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path)


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture
def by_hand(free_port):
    """Two environments as a user writes them who sets torch's variables by hand."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port, "WORLD_SIZE": "2"}
    return [{**address, "RANK": "0"}, {**address, "RANK": "1"}]
