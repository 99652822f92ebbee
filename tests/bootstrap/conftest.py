import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commlib.bootstrap.mpi import LAUNCHERS, LOCAL_RANKS
from commlib.testing.ranks import PRELOAD
from tests.bootstrap import rank_program
from tests.bootstrap.processes import Running

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
    """Runs rank_program.py under a launcher, or as processes with a given environment each."""

    def __init__(self, report_dir):
        self.report_dir = report_dir

    def command(self, *steps):
        return [sys.executable, str(PROGRAM), str(self.report_dir), *steps]

    def launch(self, command, environ=None, timeout_s=60):
        """Run a launcher's command; return its exit code and what it and its ranks wrote."""
        process = subprocess.Popen(
            command,
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
        return process.returncode, output

    def run(self, *environs, steps, timeout_s=60):
        """Run the steps in a process for each environment; return the exit codes and what all of them wrote.

        The processes are forks of one that has imported torch, which takes seconds.
        """
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOAD, "pytest"])
        outputs = [self.report_dir / f"{number}.txt" for number in range(len(environs))]
        processes = [
            context.Process(target=rank_program.be, args=({**os.environ, **environ}, output, self.report_dir, steps))
            for environ, output in zip(environs, outputs, strict=True)
        ]
        deadline = time.monotonic() + timeout_s
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(deadline - time.monotonic(), 0))
            process.kill()
            process.join()
        return [process.exitcode for process in processes], "".join(output.read_text() for output in outputs)

    def report(self, rank):
        return json.loads((self.report_dir / f"{rank}.json").read_text())


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path)


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


@pytest.fixture
def by_hand(free_port):
    """Two environments as a user writes them who sets torch's variables by hand."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port, "WORLD_SIZE": "2"}
    return [{**address, "RANK": "0"}, {**address, "RANK": "1"}]
