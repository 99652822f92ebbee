"""Which processes and files belong to this user, as the kernel shows them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commlib.errors import Unsupported

_EVERYONE = 2**32 - 1  # numbers that a user may have


def current_user() -> int:
    """Return this process's user; an error where the kernel shows others by the same number."""
    user = os.geteuid()
    if user == _overflow_user() and not _maps_everyone():
        raise Unsupported(
            f"this process's user is shown as number {user}, as is every user that its user namespace does not map, so "
            f"anyone could pass for it; run as a user that is mapped (`unshare --map-current-user`, another --user of "
            f"the container)"
        )
    return user


@contextmanager
def opened_trusted(path: str | Path, flags: int, folder: int | None = None) -> Iterator[int]:
    """Open a file, or a folder, that nobody but this user and root can have written; an OSError says why it is none."""
    fd = os.open(path, flags | os.O_CLOEXEC, dir_fd=folder)
    try:
        if why := _distrusted(os.fstat(fd)):
            raise PermissionError(errno.EPERM, why, str(path))
        yield fd
    finally:
        os.close(fd)


def _distrusted(info: os.stat_result) -> str:
    try:
        if info.st_uid not in (0, current_user()):
            return f"it belongs to another user (number {info.st_uid})"
    except Unsupported as error:
        return str(error)
    return "other users may write to it" if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def _overflow_user() -> int:
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except OSError:
        return 65534


def _maps_everyone() -> bool:
    try:
        ranges = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:  # a kernel without user namespaces
        return True
    return sum(int(line.split()[2]) for line in ranges) == _EVERYONE
