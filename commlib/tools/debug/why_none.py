"""Why there is no job to show."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from commlib.debug.jobs import processes
from commlib.debug.record import NAME, descriptors, opened
from commlib.users import own_user


def why_none(wanted: int | None) -> str:
    """Say why there is no job, and what to do."""
    if wanted is not None:
        try:
            owner = Path(f"/proc/{wanted}").stat().st_uid
        except OSError:
            return f"there is no process {wanted} on this host"
        if own_user() not in (0, owner):
            return f"process {wanted} belongs to another user (number {owner}); run this as that user, or as root"
    if why := next(filter(None, map(_why_passed_over, processes(wanted))), ""):
        return why
    if wanted is None:
        return (
            "no process of this user on this host has a communicator, or waits in init() (other users' jobs: as root)"
        )
    return f"neither process {wanted} nor a process below it has a communicator, or waits in init()"


def _why_passed_over(pid: int) -> str:
    """Say why a process that has a record is none of a job's; empty: it has none, or it is."""
    for fd in descriptors(pid, NAME):
        record = opened(fd)
        if record is None:
            return f"process {pid} runs another version of commlib; use the `commlib` of its environment"
        if record.pid == pid:
            continue
        if _namespace(pid) != _namespace(os.getpid()):
            return f"process {pid} is in a container (another PID namespace); run commlib debug in there"
        return f"process {pid} is no rank: it was forked from rank process {record.pid}, or from a child of that"
    return ""


def _namespace(pid: int) -> Path | None:
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/pid").readlink()
    return None
