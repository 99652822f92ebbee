"""The machine without its GPUs: Python, processor, what the Linux kernel allows, and the environment."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from commlib import env
from commlib.tools.capacity import groups
from commlib.tools.cli.doctor.finding import Finding, broken, missing, ok, warning

NODES = Path("/sys/devices/system/node")


def python() -> Finding:
    """Return which Python runs commlib."""
    return ok(f"{platform.python_version()} ({sys.executable})")


def cpu() -> Finding:
    """Return the processor."""
    return ok(f"{_of_cpu('model name') or 'unknown model'}, {platform.machine()}")


def _of_cpu(key: str) -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def cores() -> Finding:
    """Return how many cores this process may use: of its affinity, and of what its control groups grant."""
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    allowed = min([float(usable), *_quotas()])
    detail = f"{allowed:g} of {present} usable"
    if allowed < usable:
        detail += f" (cgroup quota; affinity allows {usable})"
    elif usable < present:
        detail += " (affinity)"
    if allowed < 2:
        return warning(detail, "two ranks will share one core: expect low figures; give the container 2 or more")
    return ok(detail)


def _quotas() -> Iterator[float]:
    """Yield the cores that each control group above this process grants, where it limits them."""
    for group in groups("cpu"):
        limit, _, period = _said(group / "cpu.max").partition(" ")
        limit, period = limit or _said(group / "cpu.cfs_quota_us"), period or _said(group / "cpu.cfs_period_us")
        if limit.isdecimal() and period.isdecimal():  # else "max" or -1
            yield int(limit) / int(period)


def _said(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def numa() -> Finding:
    """Return the NUMA nodes, and on which of them this process may run."""
    nodes = {path.name.removeprefix("node"): _said(path / "cpulist") for path in sorted(NODES.glob("node[0-9]*"))}
    if not nodes:
        return ok("nodes cannot be read: the kernel or the container does not show /sys/devices/system/node")
    ours = os.sched_getaffinity(0)
    used = [node for node, cpus in nodes.items() if ours & _cpus(cpus)]
    if len(nodes) == 1:
        return ok("1 node")
    table = tuple(f"node {node}: cores {cpus or 'none'}" for node, cpus in nodes.items())
    if len(used) == 1:
        return ok(f"{len(nodes)} nodes; this process may run on node {used[0]} alone", table=table)
    remedy = "ranks on CPUs are faster on one node: numactl --cpunodebind=0 --membind=0 commlib run …"
    return ok(f"{len(nodes)} nodes; this process may run on {len(used)} of them", remedy, table)


def _cpus(text: str) -> set[int]:
    """Read 0-3,8."""
    spans = [span.partition("-") for span in text.split(",") if span]
    return {cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)}


_LEVELS = {
    "v2": {"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"},
    "v3": {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "v4": {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"},
}


def isa() -> Finding:
    """Return which vector instructions the CPU kernels may use."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ok("portable kernels")
    flags, best = set(_of_cpu("flags").split()), ""
    for level, wanted in _LEVELS.items():
        if not wanted <= flags:
            break
        best = level
    if not best:
        return broken("older than x86-64-v2", "commlib needs SSE4.2, as CPUs since 2009 have")
    return ok(f"x86-64-{best}")


def memfd() -> Finding:
    """Try to make what shared memory lies in."""
    try:
        os.close(os.memfd_create("commlib-doctor"))
    except OSError as error:
        return broken(str(error), "allow memfd_create in the seccomp profile")
    return ok("memfd_create works")


def pidfd() -> Finding:
    """Try to watch a process, as ranks watch each other."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return warning(str(error), "Linux 5.3 or newer notices a dead rank sooner")
    return ok("pidfd_open works")


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


def peer_memory() -> Finding:
    """Try whether a rank may read the memory of another: middle sizes are then copied once instead of twice."""
    text = ctypes.create_string_buffer(b"commlib-doctor")
    program = _READER.format(os.getpid(), ctypes.addressof(text), len(text))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.stdout.strip() != text.value.decode():
        said = (done.stderr.strip() or "another value was read").splitlines()[-1]
        remedy = (
            "calls are right, some of 64 KiB and more slower; kernel.yama.ptrace_scope=0 or, in a container, ptrace"
        )
        return warning(said, remedy)
    return ok("a process reads another's with process_vm_readv")


def environment() -> Finding:
    """Return the variables that are set; one that nothing reads is most likely misspelt."""
    try:
        set_here = [f"{v.name}={'…' if v.secret else v.get()}" for v in env.VARIABLES if v.is_set()]
    except ValueError as error:
        return broken(str(error), "correct or unset it")
    if env.unknown():
        told = ". ".join(map(env.unknown_text, env.unknown()))
        return warning(told, "correct or unset it; docs/environment.md lists all")
    return ok(", ".join(set_here) or "no COMMLIB_ variable is set")


def slurm() -> Finding:
    """Return whether Slurm could start ranks."""
    if shutil.which("srun") is None:
        return missing("no srun on PATH", "only needed to start ranks through Slurm")
    job = env.foreign("SLURM_JOB_ID")
    return ok(f"in job {job}" if job else "srun is here, outside a job")
