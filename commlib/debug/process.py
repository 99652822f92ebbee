"""What the kernel knows of a process: whether it runs, is stopped or gone, how busy it is, and on which core."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_STATES = {
    "T": "stopped by a signal (SIGSTOP); `kill -CONT` lets it go on",
    "t": "stopped by a debugger",
    "Z": "dead: it has ended, and its parent has not asked how",
    "X": "dead",
    "D": "waiting in the kernel where no signal reaches it (a disk, a file server, the driver)",
}


@dataclass(frozen=True)
class Process:
    pid: int
    state: str = "X"  # the kernel's letter
    core: int = -1
    parent: int = 0
    cpu_s: float = 0.0
    memory_mib: int = 0
    waits_in: str = ""  # the kernel's function
    at_s: float = 0.0

    @property
    def gone(self) -> bool:
        return self.state in "ZX"

    @property
    def halted(self) -> str:
        """Why it cannot run; empty for one that can."""
        return _STATES.get(self.state, "")

    def busy_since(self, before: Process) -> float:
        """Return the share of a core that it has used since."""
        return (self.cpu_s - before.cpu_s) / max(self.at_s - before.at_s, 1e-3)


def process(pid: int) -> Process:
    """Look at one; one that is not there is gone. Of those elsewhere, below 1, nothing is known."""
    if pid < 1:
        return Process(pid, state="?")
    fields = _stat(pid)
    if not fields:
        return Process(pid, at_s=time.monotonic())
    return Process(
        pid,
        state=fields[0],
        core=int(fields[36]),
        parent=int(fields[1]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        memory_mib=int(fields[21]) * os.sysconf("SC_PAGE_SIZE") >> 20,
        waits_in=_read(f"/proc/{pid}/wchan"),
        at_s=time.monotonic(),
    )


def state_of(pid: int) -> str:
    """Return the kernel's letter for the state of a process; X: it is gone."""
    return next(iter(_stat(pid)), "X")


def _stat(pid: int) -> list[str]:
    return _read(f"/proc/{pid}/stat").rpartition(") ")[2].split()


def command_of(pid: int) -> str:
    return " ".join(_read(f"/proc/{pid}/cmdline").split("\0")).strip()


def killed_for_memory() -> int:
    """Return how many processes of this control group the kernel has killed as memory ran out."""
    group = _read("/proc/self/cgroup").rpartition("::/")[2].strip()
    for line in _read(f"/sys/fs/cgroup/{group}/memory.events").splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill":
            return int(count)
    return 0


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""
