"""What `commlib doctor` looks at: one function per topic, returning what it found and what to do about it."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from commlib import env

# A first import of torch from a cold disk takes many seconds; a probe that is longer than this hangs.
PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Finding:
    """One line of the report; `needed` ones decide the exit code."""

    topic: str
    state: str  # ok, missing or broken
    detail: str
    remedy: str = ""
    needed: bool = False


class Probe:
    """A command that runs beside the other checks, so that what it loads can crash or hang without us."""

    def __init__(self, topics: tuple[str, ...], command: list[str]) -> None:
        self.topics = topics
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self) -> tuple[str, str]:
        """Return what it printed, and how it failed ('' when it did not)."""
        try:
            out, errors = self._process.communicate(timeout=PROBE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            out, errors = self._process.communicate()
            return out, f"no answer within {PROBE_TIMEOUT_S:.0f} s"
        code = self._process.returncode
        if code < 0:
            return out, f"died of {signal.Signals(-code).name}"
        last = (errors.strip() or f"exit code {code}").splitlines()[-1]
        return out, last if code else ""

    def kill(self) -> None:
        """End the probe and everything it started; fine when it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)


def run_all() -> Iterator[Finding]:
    """Yield every finding; the slow probes run side by side while the quick checks are made."""
    libraries, ranks, mpi = _libraries_probe(), _ranks_probe(), _mpi_probe()
    try:
        for check in QUICK:
            yield check()
        yield from _libraries(libraries)
        yield _two_ranks(ranks)
        yield _mpi(mpi) if mpi is not None else _no_mpi()
    finally:
        for probe in (libraries, ranks, mpi):
            if probe is not None:
                probe.kill()


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()} ({sys.executable})")


def _cpu() -> Finding:
    text = Path("/proc/cpuinfo").read_text()
    models = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return Finding("cpu", "ok", f"{models[0] if models else 'unknown model'}, {platform.machine()}")


def _cores() -> Finding:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    limit, _, period = quota.read_text().partition(" ") if quota.exists() else ("max", "", "")
    allowed = usable if limit == "max" else min(usable, int(limit) / int(period))
    detail = f"{allowed:g} of {present} usable"
    if allowed < usable:
        detail += f" (cgroup quota; affinity allows {usable})"
    if allowed < 2:
        return Finding("cores", "ok", detail, "two ranks will share one core: expect low figures")
    return Finding("cores", "ok", detail)


_LEVELS = {
    "v2": {"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"},
    "v3": {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "v4": {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"},
}


def _isa() -> Finding:
    if platform.machine() not in ("x86_64", "AMD64"):
        return Finding("isa", "ok", "portable kernels")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())
    levels = []
    for level, wanted in _LEVELS.items():
        if not wanted <= flags:
            break
        levels.append(level)
    if not levels:
        return Finding("isa", "broken", "older than x86-64-v2", "commlib needs SSE4.2 (any CPU since 2009)", True)
    return Finding("isa", "ok", f"x86-64-{levels[-1]}")


def _memfd() -> Finding:
    try:
        os.close(os.memfd_create("commlib-doctor"))
    except OSError as error:
        return Finding("memfd", "broken", str(error), "allow memfd_create in the seccomp profile", True)
    return Finding("memfd", "ok", "memfd_create works")


def _pidfd() -> Finding:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return Finding("pidfd", "missing", str(error), "Linux 5.3 or newer notices a dead rank sooner")
    return Finding("pidfd", "ok", "pidfd_open works")


def _environment() -> Finding:
    try:
        set_here = [f"{v.name}={v.get()}" for v in env.VARIABLES if v.is_set()]
    except ValueError as error:
        return Finding("environment", "broken", str(error), "correct or unset it", needed=True)
    if env.unknown():
        names = ", ".join(env.unknown())
        return Finding("environment", "broken", f"nothing reads {names}", "docs/environment.md has the names")
    return Finding("environment", "ok", ", ".join(set_here) or "no COMMLIB_ variable is set")


def _slurm() -> Finding:
    if shutil.which("srun") is None:
        return Finding("slurm", "missing", "no srun on PATH", "only needed to start ranks through Slurm")
    job = os.environ.get("SLURM_JOB_ID")
    return Finding("slurm", "ok", f"in job {job}" if job else "srun is here, outside a job")


QUICK: tuple[Callable[[], Finding], ...] = (
    _python,
    _cpu,
    _cores,
    _isa,
    _memfd,
    _pidfd,
    _environment,
    _slurm,
)


# In the order of `libraries.report`: what is not reported is where it ended.
LIBRARIES = ("torch", "native library", "gpu", "nccl", "gpu backend")


def _libraries_probe() -> Probe:
    call = "from commlib.cli import libraries; libraries.report()"
    return Probe(LIBRARIES, [sys.executable, "-c", call])


def _libraries(probe: Probe) -> Iterator[Finding]:
    out, failure = probe.finish()
    findings = [Finding(**json.loads(line)) for line in out.splitlines() if line.startswith("{")]
    yield from findings
    if len(findings) < len(probe.topics):
        topic = probe.topics[len(findings)]  # the one it was at when it ended
        yield Finding(topic, "broken", failure or "the probe ended early", "reinstall: pip install .", True)


def _ranks_probe() -> Probe:
    call = "from commlib.cli import libraries; libraries.two_ranks()"
    return Probe(("two ranks",), [sys.executable, "-c", call])


def _two_ranks(probe: Probe) -> Finding:
    out, failure = probe.finish()
    if failure:
        return Finding("two ranks", "broken", failure, "COMMLIB_TRACEBACK=1 commlib test --quick", True)
    return Finding("two ranks", "ok", out.strip(), needed=True)


def _mpi_probe() -> Probe | None:
    if importlib.util.find_spec("mpi4py") is None:
        return None
    beside = Path(sys.executable).with_name("mpirun")
    launcher = str(beside) if beside.exists() else shutil.which("mpirun")
    if launcher is None:
        return None
    about = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False).stdout
    vendor = "Open MPI" if "open" in about.lower() else "MPICH" if "HYDRA" in about else "MPI"
    flags = ["--oversubscribe", "--allow-run-as-root"] if vendor == "Open MPI" else []
    hello = [sys.executable, "-m", "mpi4py.bench", "helloworld"]
    return Probe((f"{vendor} ({launcher})",), [launcher, *flags, "-n", "2", *hello])


def _no_mpi() -> Finding:
    detail = "no mpi4py or no mpirun; only needed to start ranks through MPI"
    return Finding("mpi", "missing", detail, "pip install 'commlib[mpi]'")


def _mpi(probe: Probe) -> Finding:
    out, failure = probe.finish()
    launcher = probe.topics[0]
    if failure:
        return Finding("mpi", "broken", failure, f"is {launcher} the MPI of mpi4py?")
    if out.count(" of 2 ") != 2:
        said = (out.strip() or "nothing").splitlines()[0]
        detail = f"{launcher} started 2 ranks that do not see each other: {said}"
        return Finding("mpi", "broken", detail, "use the mpirun of the MPI that mpi4py loads")
    return Finding("mpi", "ok", f"{launcher}: 2 ranks see each other")
