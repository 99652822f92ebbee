"""How many ranks this machine holds: what the backend serves, and what memory, processes and open files allow."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from commlib import env

RANK_BYTES = 256 << 20  # Python, torch and the tools take 170 MiB of a rank's own; the rest is for threads and peers
USED = 0.9  # of the memory that is free
FILES, FILES_RANK = 64, 8  # open files of a launcher, and those for each rank: connections, lifeline, pipes, pidfd
TASKS_RANK = 4  # processes and threads: the rank, what torch starts for it, and who serves its connection
CGROUPS = Path("/sys/fs/cgroup")
MAX_RANKS = 10_000
Limit = tuple[int, str]  # ranks, and what allows no more
Buffers = Callable[[int], int]  # bytes that each of so many ranks allocates


def check(ranks: int, backend: str, buffers: Buffers) -> None:
    """Refuse, before any rank starts, more than fit: those of the backend, with their buffers in the free memory."""
    _refuse(ranks, [*_served(backend), _held(buffers), *_started()])


def check_processes(ranks: int) -> None:
    """Refuse more ranks than this user may start, of whatever program."""
    _refuse(ranks, list(_started()))


def default_ranks() -> int:
    """Return one rank for each GPU that the driver shows this process, and 2 where there are fewer."""
    devices = len(list(Path("/dev").glob("nvidia[0-9]*")))
    visible = env.foreign("CUDA_VISIBLE_DEVICES").split(",")
    return max(0 if env.hides_gpus() else min(devices, len(visible)) if visible != [""] else devices, 2)


def _refuse(ranks: int, limits: list[Limit]) -> None:
    limit, why = min(limits, default=(ranks, ""))
    if ranks > limit:
        remedy = f"give -n {limit} or fewer" if limit > 0 else "there is no room for even one rank"
        raise ValueError(f"-n {ranks} is more than fits here: {why}; {remedy}")


def _served(backend: str) -> Iterator[Limit]:
    import torch

    from commlib.native import library

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    on_cpu = library.max_shm_ranks()
    if backend == "nccl":
        yield gpus, f"nccl needs a GPU for each rank, and there are {gpus}"
    elif backend != "torch" and gpus <= on_cpu:
        yield on_cpu, f"the shm backend serves {on_cpu} ranks at most"


def _held(buffers: Buffers) -> Limit:
    """Return how many ranks the free memory holds; what each takes may grow with their number."""
    from commlib.native import library

    def needed(ranks: int) -> int:
        return RANK_BYTES + library.shm_section_bytes(ranks) + buffers(ranks)

    free = free_memory()
    fits = next((ranks - 1 for ranks in range(1, MAX_RANKS) if ranks * needed(ranks) > USED * free), MAX_RANKS)
    return fits, f"{fits + 1} would take {needed(fits + 1) >> 20} MiB each, and {free >> 20} MiB of memory are free"


def _started() -> Iterator[Limit]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY:
        yield (files - FILES) // FILES_RANK, f"a process may open {files} files (ulimit -n)"
    for group in groups("pids"):
        limit, now = _number(group / "pids.max"), _number(group / "pids.current")
        if limit is not None and now is not None:
            yield (limit - now) // TASKS_RANK, f"the container may have {limit} processes and threads, and has {now}"


def free_memory() -> int:
    """Return the bytes that processes may still take: of the machine, and of every control group that holds us."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    free = [int(fields["MemAvailable"].split()[0]) << 10]
    for group in groups("memory"):
        for maximum, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, now = _number(group / maximum), _number(group / used)
            if limit is not None and now is not None:
                free.append(limit - now + _cached(group))
    return max(min(free), 0)


def _cached(group: Path) -> int:
    """Return what of a group's memory is a cache of files, which gives way."""
    fields = dict(line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines())
    return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))


def groups(controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups that hold this process, of either version of them."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        root = CGROUPS / controller if controller in names.split(",") else CGROUPS
        if not names or controller in names.split(","):
            inner = root / path.strip("/")
            # In a container the path may be the host's: then the root is what is seen of it.
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(root) and folder.is_dir())


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
