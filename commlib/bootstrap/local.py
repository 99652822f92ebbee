"""The world that `commlib run` made: its launcher serves the exchange, and knows how ranks end."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from commlib import env
from commlib.bootstrap.launcher import Identity, announced
from commlib.bootstrap.local_world import meet
from commlib.bootstrap.unix_rendezvous import Place
from commlib.bootstrap.world import World

START = "commlib run -n N"
LAUNCHER = Place("launcher", "the launcher")  # where a launcher serves its ranks


def detect(environ: Mapping[str, str]) -> int | None:
    """Return the number of ranks that `commlib run` started; None in processes that another launcher or tool started.

    Those have our variables, but not the pipe that only the ranks and their direct children inherit.
    """
    rank, size, fd = env.LOCAL_RANK.name, env.LOCAL_SIZE.name, env.LOCAL_FD.name
    total = announced(environ, "commlib run", rank, size, (env.LOCAL_SERVER.name, fd))
    return total if total is not None and _is_pipe(*env.LOCAL_FD.parse(environ[fd])) else None


def connect(timeout_s: float) -> World:
    rank, size = env.LOCAL_RANK.get(), env.LOCAL_SIZE.get()
    return join(env.LOCAL_SERVER.get(), rank, size, timeout_s)


def join(server: str, rank: int, size: int, timeout_s: float) -> World:
    """Join the ranks that a launcher's server of this name serves."""
    return meet("local", LAUNCHER._replace(server=server), Identity(rank, size, rank), timeout_s)


def _is_pipe(fd: int, inode: int) -> bool:
    """Whether it is the launcher's pipe, and not a descriptor of the same number."""
    try:
        opened = os.fstat(fd)
    except OSError:
        return False
    return stat.S_ISFIFO(opened.st_mode) and opened.st_ino == inode
