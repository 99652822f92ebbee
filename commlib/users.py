"""Whose processes and files are this user's own, as the kernel shows them."""

from __future__ import annotations

import os
from pathlib import Path

from commlib.errors import Unsupported

_EVERYONE = 2**32 - 1  # numbers that a user may have


def own_user() -> int:
    """Return this process's user; an error where the kernel shows others by the same number."""
    user = os.geteuid()
    if user == _overflow_user() and not _maps_everyone():
        raise Unsupported(
            f"this process's user is shown as number {user}, as is every user that its user namespace does not map, so "
            f"anyone could pass for it; run as a user that is mapped (`unshare --map-current-user`, another --user of "
            f"the container)"
        )
    return user


def _overflow_user() -> int:
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except OSError:
        return 65534


def _maps_everyone() -> bool:
    """Whether each user of the host has a number of its own here, as outside of containers."""
    try:
        ranges = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:  # a kernel without user namespaces
        return True
    return sum(int(line.split()[2]) for line in ranges) == _EVERYONE
