"""Run one suite for one backend: in a process that is ended and started again when a test hangs or kills it."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START_S = 120  # to import torch and find the tests
PATIENCE_S = 20  # PyTorch's harness ends a late test itself, and says where its ranks were

# Under whose name a backend is tested, the main one first: a test that this gate skips is tried under the next one.
GATES = {"gloo": ("gloo",), "nccl": ("nccl",)}
GATES_OF_OTHERS = {"cpu": ("gloo", "mpi"), "cuda": ("nccl", "gloo", "mpi")}


@dataclass(frozen=True)
class Outcome:
    """What became of one test: passed, failed or skipped, why, and under which gate."""

    outcome: str
    reason: str = ""
    seconds: float = 0.0
    gate: str = ""


@dataclass(frozen=True)
class Job:
    """One suite for one backend."""

    suite: str
    backend: str
    ranks: int
    device: str
    deadline_s: int
    log: Path
    gate: str = ""
    module: str = "tests.torch_suite.suites"
    start: str = "forkserver"
    match: str = ""  # a regular expression for the tests' names
    share: tuple[int, int] = (0, 1)  # which of how many shares of them

    def environment(self):
        return os.environ | {
            "TORCH_SUITE_BACKEND": self.backend,
            "TORCH_SUITE_GATE": self.gate,
            "TORCH_SUITE_DEVICE": self.device,
            "TORCH_SUITE_START": self.start,
            "WORLD_SIZE": str(self.ranks),
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(self.deadline_s),
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # CUDA must not be initialised where ranks are forked from
            "OMP_NUM_THREADS": "1",
        }


def run_in_shares(job, shares):
    """Return {test: Outcome} of a job whose tests are dealt out to so many processes at a time."""
    parts = [replace(job, share=(i, shares), log=job.log.with_suffix(f".{i}.log")) for i in range(shares)]
    with ThreadPoolExecutor(shares) as threads:
        found = dict(item for part in threads.map(run, parts) for item in part.items())
    return dict(sorted(found.items()))


def run(job):
    """Return {test: Outcome} of a job."""
    gates = GATES.get(job.backend) or GATES_OF_OTHERS[job.device]
    found, left = {}, None
    for gate in gates if job.suite == "distributed" else gates[:1]:
        again = run_gate(replace(job, gate=gate), left)
        found |= {name: outcome for name, outcome in again.items() if left is None or outcome.outcome != "skipped"}
        left = [name for name, outcome in found.items() if outcome.outcome == "skipped"]
        if not left:
            break
    return found


def run_gate(job, left):
    """Return {test: Outcome} under one gate, with as many processes as hanging tests make necessary."""
    found = {}
    while left is None or left:
        with Process(job, left) as process:
            names = process.names()
            found |= process.outcomes(names)
        left = [name for name in names if name not in found]
    return found


class Process:
    """The worker process, its ranks, and what it tells; ended with everything it started."""

    def __init__(self, job, left):
        self._job = job
        read, write = os.pipe()
        self._log = job.log.open("ab")
        command = [sys.executable, "-m", "tests.torch_suite.worker", f"{job.module}.{job.suite}", str(write)]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=job.environment(),
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[write],
            start_new_session=True,
        )
        os.close(write)
        self._pipe = os.fdopen(read, "rb", buffering=0)
        self._bytes, self._ended = b"", False
        wanted = {"match": job.match, "share": job.share, "only": left}
        self._process.stdin.write(json.dumps(wanted).encode())
        self._process.stdin.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._pipe.close()
        self._log.close()

    def names(self):
        """Return the tests that the worker is going to run."""
        line = self._line(START_S)
        return line["tests"] if line else ["the suite"]

    def outcomes(self, names):
        """Return {test: Outcome} up to the end, or to the test that did not come back, which failed."""
        found, running = {}, ""
        while (line := self._line(self._job.deadline_s + PATIENCE_S)) and "end" not in line:
            running = line.pop("test")
            if "outcome" in line:
                found[running] = Outcome(gate=self._job.gate, **line)
                running = ""
        if running:
            reason = "its process died" if self._ended else f"did not return in {self._job.deadline_s} s"
            return found | {running: Outcome("failed", reason, gate=self._job.gate)}
        missing = Outcome("failed", f"was not started; see {self._job.log}", gate=self._job.gate)
        return dict.fromkeys(names, missing) | found

    def _line(self, timeout_s):
        """Return what the worker tells next; None if it is late, or has ended."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._bytes:
            ready, _, _ = select.select([self._pipe], [], [], max(deadline - time.monotonic(), 0))
            more = os.read(self._pipe.fileno(), 1 << 16) if ready else b""
            if not more:
                self._ended = bool(ready)
                return None
            self._bytes += more
        line, _, self._bytes = self._bytes.partition(b"\n")
        return json.loads(line)
