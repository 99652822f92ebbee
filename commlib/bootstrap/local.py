"""The world `commlib run` made: every rank holds a socket to the launcher, whose Hub passes bytes around."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping

from commlib import env
from commlib.bootstrap.exchange import ServedWorld
from commlib.bootstrap.launcher import announced
from commlib.bootstrap.world import World

START = "commlib run -n N"


def detect(environ: Mapping[str, str]) -> int | None:
    """Return the number of ranks `commlib run` started, None outside it or if its socket was closed."""
    rank, size, fd = env.LOCAL_RANK.name, env.LOCAL_SIZE.name, env.LOCAL_FD.name
    total = announced(environ, "commlib run", rank, size, (fd,))
    # `conda run` and its like close inherited descriptors; torchrun's variables, set too, still hold.
    return total if total is not None and _is_link(*env.LOCAL_FD.parse(environ[fd])) else None


def connect(timeout_s: float) -> World:
    """Join the ranks of the same `commlib run`; they meet in the first exchange."""
    with socket.socket(fileno=os.dup(env.LOCAL_FD.get()[0])) as link:
        return LocalWorld(link, env.LOCAL_RANK.get(), env.LOCAL_SIZE.get())


class LocalWorld(ServedWorld):
    """The rank's half of a Hub: one channel of its own, so that several communicators never mix."""

    name = "local"
    server = "the launcher"

    def __init__(self, link: socket.socket, rank: int, size: int) -> None:
        """Open a channel over `link`, this rank's socket to the launcher, which stays the caller's."""
        channel, theirs = socket.socketpair()
        super().__init__(rank, size, channel)
        self.local_rank = rank
        with theirs:
            try:
                socket.send_fds(link, [b"join"], [theirs.fileno()])
            except OSError:
                channel.close()
                self._fail("the launcher is gone")


def _is_link(fd: int, inode: int) -> bool:
    """Whether it is the launcher's socket; a child that inherited the variables alone may have another of its own."""
    try:
        there = os.fstat(fd)
        return stat.S_ISSOCK(there.st_mode) and there.st_ino == inode
    except OSError:
        return False
