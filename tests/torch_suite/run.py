"""Run one suite for one backend with pytest, which goes on in a new process after a test that hangs or kills one."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 20  # PyTorch's harness ends a late test itself, and says where its ranks were
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:warnings"]
PYTEST += ["--max-worker-restart=1000", "-o", "timeout_func_only=true"]  # the server of ranks may take its time

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
    folder: str = "tests/torch_suite/suites"
    start: str = "forkserver"
    match: str = ""  # an expression of pytest's -k
    jobs: int = 1  # tests at a time

    def environment(self, gate):
        return os.environ | {
            "TORCH_SUITE_BACKEND": self.backend,
            "TORCH_SUITE_GATE": gate,
            "TORCH_SUITE_DEVICE": self.device,
            "TORCH_SUITE_START": self.start,
            "WORLD_SIZE": str(self.ranks),
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(self.deadline_s),
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # CUDA must not be initialised where ranks are forked from
            "OMP_NUM_THREADS": "1",
        }


def run(job, only=()):
    """Return {test: Outcome} of a job, of all its tests or of those named Class::test."""
    gates = GATES.get(job.backend) or GATES_OF_OTHERS[job.device]
    found = {}
    for gate in gates if job.suite == "distributed" else gates[:1]:
        again = run_gate(job, gate, only)
        found |= {test: outcome for test, outcome in again.items() if test not in found or outcome.outcome != "skipped"}
        only = [test for test, outcome in found.items() if outcome.outcome == "skipped"]
        if not only:
            break
    return {test.rpartition("::")[2]: found[test] for test in sorted(found)}


def run_gate(job, gate, only):
    """Return {Class::test: Outcome} under one gate."""
    path, report = f"{job.folder}/{job.suite}.py", job.log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    limits = ["-n", str(job.jobs), f"--timeout={job.deadline_s + PATIENCE_S}"]
    tests = [f"{path}::{test}" for test in only] or [path]
    command = [*PYTEST, *limits, f"--junitxml={report}", "-k", job.match, *tests]
    with job.log.open("ab") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=job.environment(gate), stdout=log, stderr=log, start_new_session=True
        )
        code = process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # ranks that hang
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
    found = {f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}": outcome(case, gate) for case in cases}
    started = code in (0, 1)  # pytest's, where all tests ran
    return found if started else {**found, "the suite": Outcome("failed", f"was not started; see {job.log}", gate=gate)}


def outcome(case, gate):
    """Return what an element of pytest's report says."""
    seconds = round(float(case.get("time", 0)), 1)
    for name in ("failure", "error", "skipped"):
        if (element := case.find(name)) is not None:
            skipped, text = name == "skipped", f"{element.get('message')}\n{element.text or ''}"
            reason = element.get("message") if skipped else cause(text)
            return Outcome("skipped" if skipped else "failed", reason, seconds, gate)
    return Outcome("passed", "", seconds, gate)


def cause(text):
    """Return the line that names the error: the last that looks like one, where text follows the traceback."""
    kinds = "Error|Exception|Timeout|PeerLost|Unsupported"
    named = re.findall(rf"^(?:E +)?((?:\w+\.)*\w*(?:{kinds})\b: .*)", text, re.MULTILINE)
    rest = [line for line in text.splitlines() if line.strip()]
    return (named or rest)[-1][:300]
