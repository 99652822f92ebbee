"""What `commlib doctor` looks at: one function a topic, returning what it found and what to do about it."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from commlib import __version__, env
from commlib.errors import CommError, one_line

if TYPE_CHECKING:
    from commlib.communicator import Communicator


@dataclass(frozen=True)
class Finding:
    """One line of the report; `needed` ones decide the exit code."""

    topic: str
    state: str  # ok, missing or broken
    detail: str
    remedy: str = ""
    needed: bool = False


class Group(NamedTuple):
    """Checks that one process of its own makes in this order; if one crashes or hangs, what to say of its topic."""

    checks: dict[str, Callable[[], Finding]]
    remedy: str
    needed: bool

    def crashed(self, topic: str, how: str) -> Finding:
        """Return the finding of a check that did not come to its own."""
        return Finding(topic, "broken", how, self.remedy, self.needed)


def report(name: str) -> None:
    """Print a group's findings, one a line, each before the next is tried: what is not there is what crashed."""
    group = GROUPS[name]
    for topic, check in group.checks.items():
        try:
            finding = check()
        except Exception as error:
            finding = group.crashed(topic, one_line(error))
        print(json.dumps(asdict(finding)), flush=True)


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()} ({sys.executable})")


def _cpu() -> Finding:
    return Finding("cpu", "ok", f"{_of_cpu('model name') or 'unknown model'}, {platform.machine()}")


def _of_cpu(key: str) -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _cores() -> Finding:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    limit, _, period = quota.read_text().partition(" ") if quota.exists() else ("max", "", "")
    allowed = usable if limit == "max" else min(usable, int(limit) / int(period))
    detail = f"{allowed:g} of {present} usable"
    if allowed < usable:
        detail += f" (cgroup quota; affinity allows {usable})"
    return Finding("cores", "ok", detail, "two ranks will share one core: expect low figures" if allowed < 2 else "")


_LEVELS = {
    "v2": {"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"},
    "v3": {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "v4": {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"},
}


def _isa() -> Finding:
    if platform.machine() not in ("x86_64", "AMD64"):
        return Finding("isa", "ok", "portable kernels")
    flags, best = set(_of_cpu("flags").split()), ""
    for level, wanted in _LEVELS.items():
        if not wanted <= flags:
            break
        best = level
    if not best:
        return Finding("isa", "broken", "older than x86-64-v2", "commlib needs SSE4.2 (any CPU since 2009)", True)
    return Finding("isa", "ok", f"x86-64-{best}")


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


# A process that reads this one's memory, as one rank reads another's: a value at an address of the process pid.
_READER = """
import ctypes
pid, address, size = {}, {}, {}
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
into = ctypes.create_string_buffer(size)
here, there = Part(ctypes.addressof(into), size), Part(address, size)
libc = ctypes.CDLL(None, use_errno=True)
if libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) != size:
    raise SystemExit("process_vm_readv: " + __import__("os").strerror(ctypes.get_errno()))
print(into.value.decode())
"""


def _peer_memory() -> Finding:
    """Whether a rank may read the memory of another: middle sizes on shared memory are copied once instead of twice."""
    text = ctypes.create_string_buffer(b"commlib-doctor")
    program = _READER.format(os.getpid(), ctypes.addressof(text), len(text))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.stdout.strip() != text.value.decode():
        said = (done.stderr.strip() or "another value was read").splitlines()[-1]
        remedy = (
            "calls are right, some of 64 KiB and more slower; kernel.yama.ptrace_scope=0 or, in a container, ptrace"
        )
        return Finding("peer memory", "missing", said, remedy)
    return Finding("peer memory", "ok", "a process reads another's with process_vm_readv")


def _environment() -> Finding:
    try:
        set_here = [f"{v.name}={'…' if v.secret else v.get()}" for v in env.VARIABLES if v.is_set()]
    except ValueError as error:
        return Finding("environment", "broken", str(error), "correct or unset it", needed=True)
    if env.unknown():
        told = ". ".join(map(env.told_unknown, env.unknown()))
        return Finding("environment", "broken", told, "docs/environment.md lists all")
    return Finding("environment", "ok", ", ".join(set_here) or "no COMMLIB_ variable is set")


def _slurm() -> Finding:
    if shutil.which("srun") is None:
        return Finding("slurm", "missing", "no srun on PATH", "only needed to start ranks through Slurm")
    job = env.foreign("SLURM_JOB_ID")
    return Finding("slurm", "ok", f"in job {job}" if job else "srun is here, outside a job")


def _torch() -> Finding:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    return Finding("torch", "ok", f"{torch.__version__}, {build}", needed=True)


def _native() -> Finding:
    importlib.import_module("commlib.native")
    return Finding("native library", "ok", f"commlib {__version__}", needed=True)


def _plugins() -> Finding:
    from commlib import host
    from commlib.collectives import COLLECTIVES

    if COLLECTIVES.faults:
        return Finding("plugins", "broken", "; ".join(COLLECTIVES.faults), f"correct or unset {env.PLUGINS.name}")
    said = "; ".join(plugin.said for plugin in COLLECTIVES.plugins)
    return Finding("plugins", "ok", f"{said}; C++ by {host.compiler()[1]}" if said else "none")


def _gpu() -> Finding:
    import torch

    if not Path("/dev/nvidiactl").exists():
        return Finding("gpu", "missing", "no NVIDIA driver; ranks use the CPU")
    if torch.version.cuda is None:
        remedy = "install a CUDA build of torch; in a checkout: launch/setup.sh --gpu"
        return Finding("gpu", "broken", "a GPU, but torch is a CPU build", remedy)
    if not torch.cuda.is_available():
        return Finding("gpu", "broken", "torch finds no usable GPU", "compare nvidia-smi with torch's CUDA")
    return Finding("gpu", "ok", f"{torch.cuda.device_count()} × {torch.cuda.get_device_name(0)}")


def _nccl() -> Finding:
    from commlib.backends.nccl_control import version_text

    for path in _nccl_candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        code = ctypes.c_int()
        library.ncclGetVersion(ctypes.byref(code))
        return Finding("nccl", "ok", f"{version_text(code.value)} ({path})")
    return Finding("nccl", "missing", "no libnccl.so.2; only needed with GPUs", "CUDA torch brings it along")


def _nccl_candidates() -> Iterator[str]:
    for folder in sys.path:
        path = Path(folder) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        if path.exists():
            yield str(path)
    yield "libnccl.so.2"


def _gpu_backend() -> Finding:
    """What backend "nccl" needs beside a GPU and NCCL, and which of NCCL's features are off."""
    import torch

    from commlib import jit
    from commlib.backends.nccl_control import REMEDY, nccl4py_here

    if not torch.cuda.is_available():
        return Finding("gpu backend", "missing", "no GPU: ranks use shared memory")
    try:
        (version, features), compiler = nccl4py_here(), jit.compiler().name
    except CommError as error:
        return Finding("gpu backend", "broken", str(error), REMEDY)
    off = [f"{feature} ({reason})" for feature, reason in features.items() if reason]
    detail = f"nccl4py {version}, kernels by {compiler} into {jit.cache_dir()}"
    return Finding("gpu backend", "ok", detail, f"off: {'; '.join(off)}" if off else "")


def _two_ranks() -> Finding:
    """Sum over two live ranks through shared memory."""
    from commlib.testing import Ranks

    start = time.perf_counter()
    with Ranks(2, timeout_s=30.0, backend="shm") as ranks:
        totals = ranks.run(_sum_of_ranks)
    if totals != [3.0, 3.0]:
        raise CommError(f"all_reduce gave {totals} where 1 + 2 on each rank was expected")
    spent = time.perf_counter() - start
    return Finding("two ranks", "ok", f"started, summed over shared memory and closed in {spent:.1f} s", needed=True)


def _sum_of_ranks(comm: Communicator) -> float:
    import torch

    x = torch.full((1000,), comm.rank + 1.0)
    comm.all_reduce(x)
    return float(x.mean())


def _mpi() -> Finding:
    beside = Path(sys.executable).with_name("mpirun")
    launcher = str(beside) if beside.exists() else shutil.which("mpirun")
    if launcher is None or importlib.util.find_spec("mpi4py") is None:
        detail = "no mpi4py or no mpirun; only needed to start ranks through MPI"
        return Finding("mpi", "missing", detail, "pip install mpi4py mpich")
    about = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False).stdout
    vendor = "Open MPI" if "open" in about.lower() else "MPICH" if "HYDRA" in about else "MPI"
    flags = ["--oversubscribe", "--allow-run-as-root"] if vendor == "Open MPI" else []
    hello = [launcher, *flags, "-n", "2", sys.executable, "-m", "mpi4py.bench", "helloworld"]
    done = subprocess.run(hello, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        return Finding("mpi", "broken", said, f"is {vendor} ({launcher}) the MPI of mpi4py?")
    if done.stdout.count(" of 2 ") != 2:
        said = (done.stdout.strip() or "nothing").splitlines()[0]
        detail = f"{vendor} ({launcher}) started 2 ranks that do not see each other: {said}"
        return Finding("mpi", "broken", detail, "use the mpirun of the MPI that mpi4py loads")
    return Finding("mpi", "ok", f"{vendor} ({launcher}): 2 ranks see each other")


QUICK: tuple[Callable[[], Finding], ...] = (
    _python,
    _cpu,
    _cores,
    _isa,
    _memfd,
    _pidfd,
    _peer_memory,
    _environment,
    _slurm,
)

_LIBRARIES = {
    "torch": _torch,
    "native library": _native,
    "plugins": _plugins,
    "gpu": _gpu,
    "nccl": _nccl,
    "gpu backend": _gpu_backend,
}
GROUPS = {
    "libraries": Group(_LIBRARIES, "install it again: `make setup` in a checkout, else from where it came", True),
    "ranks": Group({"two ranks": _two_ranks}, "COMMLIB_TRACEBACK=1 commlib test --quick", True),
    "mpi": Group({"mpi": _mpi}, "use the mpirun of the MPI that mpi4py loads", False),
}
