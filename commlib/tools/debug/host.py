"""The jobs of this user on this host, and why there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from commlib.debug.jobs import process
from commlib.debug.record import NAME, OPEN, Record, descriptors, opened, records_of
from commlib.debug.starting import Starting
from commlib.users import current_user


def processes(wanted: int | None = None) -> Iterator[int]:
    """Yield the processes of this user; of `wanted`, this one and those below it."""
    user = current_user()
    with os.scandir("/proc") as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.name.isdecimal() and (user == 0 or entry.stat().st_uid == user):
                    pid = int(entry.name)
                    if wanted is None or wanted in ancestors(pid):
                        yield pid


def jobs_here(wanted: int | None = None) -> list[list[Record]]:
    """Return the records of each job of this user on this host; of `wanted`, a process of a job or above it."""
    jobs: list[tuple[set[int], list[Record]]] = []
    for record in [record for pid in processes() for record in records_of(pid)]:
        ids = {slot.id for slot in record.mapped_slots() if slot.state == OPEN}
        joined = [job for job in jobs if job[0] & ids]
        if ids:
            jobs = [job for job in jobs if job not in joined]
            ids = ids.union(*(others for others, _ in joined))
            jobs.append((ids, [record, *chain(*(records for _, records in joined))]))
    ordered = [sorted(records, key=lambda record: record.pid) for _, records in jobs]
    return [records for records in ordered if wanted is None or any(wanted in ancestors(one.pid) for one in records)]


def starting_here(wanted: int | None = None) -> list[Starting]:
    """Return the ranks that wait in init(): all of this user on this host, or those of `wanted` and below it."""
    starting = (Starting.of(pid) for pid in sorted(processes(wanted)))
    return [one for one in starting if one is not None]


def ancestors(pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        pid = process(pid).parent


def why_none(wanted: int | None) -> str:
    """Say why there is no job, and what to do."""
    if wanted is not None:
        try:
            owner = Path(f"/proc/{wanted}").stat().st_uid
        except OSError:
            return f"there is no process {wanted} on this host"
        if current_user() not in (0, owner):
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
        if record.pid != pid:
            other = f"was forked from rank process {record.pid}"
            return f"process {pid} is no rank: it {other}, or is in a container: run commlib debug in there"
    return ""
