"""The world `commlib run` made: every rank holds a socket to the launcher, whose Hub passes bytes around."""

from __future__ import annotations

import os
import pickle
import socket
import stat
from collections.abc import Mapping
from typing import NoReturn

from commlib import env
from commlib.bootstrap.hub import GONE, Answer, Question
from commlib.bootstrap.launcher import announced
from commlib.bootstrap.world import World
from commlib.errors import CommError, PeerLost

START = "commlib run -n N"
ANSWER_S = 2.0  # how long after its deadline a rank waits for the launcher to say who is missing
LONGEST_S = 1e6  # that a socket can wait


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


class LocalWorld(World):
    """The rank's half of a Hub: one channel of its own, so that several communicators never mix."""

    name = "local"

    def __init__(self, link: socket.socket, rank: int, size: int) -> None:
        """Open a channel over `link`, this rank's socket to the launcher, which stays the caller's."""
        self.rank = self.local_rank = rank
        self.size = size
        self._round = 0
        self._lost = ""
        self._channel, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(link, [b"join"], [theirs.fileno()])
            except OSError:
                self._channel.close()
                self._fail("the launcher is gone")

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Return every rank's bytes in rank order."""
        if self._lost:
            self._fail(self._lost)
        if self._channel.fileno() < 0:
            raise CommError(f"rank {self.rank}: this LocalWorld is closed; make a new one with init()")
        self._round += 1
        try:
            kind, answer = self._ask((self._round, timeout_s, data))
        except TimeoutError:
            kind, answer = "late", "its launcher, which does not answer"
        except GONE:
            kind, answer = "lost", "the launcher is gone"
        if not isinstance(answer, str):
            return answer
        if kind == "late":
            raise self.late(timeout_s, self._round, answer)
        self._fail(answer)

    def close(self) -> None:
        """Leave the channel; ranks that wait for this one are told."""
        self._channel.close()

    def _ask(self, question: Question) -> Answer:
        answered = False
        self._channel.settimeout(min(question[1] + ANSWER_S, LONGEST_S))
        try:
            self._channel.sendall(pickle.dumps(question))
            with self._channel.makefile("rb") as file:
                answer: Answer = pickle.load(file)
            answered = True
        finally:
            if not answered:  # half a question may be out: nothing that follows would be understood
                self.close()
        return answer

    def _fail(self, why: str) -> NoReturn:
        self._lost = why
        raise PeerLost(f"rank {self.rank}: {why} (local exchange {self._round})")


def _is_link(fd: int, inode: int) -> bool:
    """Whether it is the launcher's socket; a child that inherited the variables alone may have another of its own."""
    try:
        there = os.fstat(fd)
        return stat.S_ISSOCK(there.st_mode) and there.st_ino == inode
    except OSError:
        return False
