"""The world `commlib run` made: every rank holds a socket to the launcher, whose Hub passes bytes around."""

from __future__ import annotations

import os
import socket
import stat
import struct
import time
from collections.abc import Mapping

from commlib import env
from commlib.bootstrap.launcher import announced
from commlib.bootstrap.world import World
from commlib.errors import CommError, CommTimeout, PeerLost

START = "commlib run -n N"
ANSWER_S = 2.0  # how long a rank past its deadline waits for the launcher to say who is missing

# A frame: kind, round, length of what follows. Rank to launcher: MINE carries its bytes, WHO asks who is
# missing. Launcher to rank: ALL carries the lengths of every rank's bytes, then the bytes; MISSING the
# ranks that did not come; LOST who is gone and how, once, at any time.
HEADER = struct.Struct("<cQQ")
MINE, WHO, ALL, MISSING, LOST = b"d", b"w", b"a", b"m", b"l"


def detect(environ: Mapping[str, str]) -> int | None:
    """Return the number of ranks `commlib run` started, None outside it or if its socket was closed."""
    rank, size, fd = env.LOCAL_RANK.name, env.LOCAL_SIZE.name, env.LOCAL_FD.name
    total = announced(environ, "commlib run", rank, size, (fd,))
    # `conda run` and its like close inherited descriptors; torchrun's variables, set too, still hold.
    return total if total is not None and _is_link(*env.LOCAL_FD.parse(environ[fd])) else None


def connect(timeout_s: float) -> World:
    """Join the ranks of the same `commlib run`; they meet in the first exchange."""
    link = socket.socket(fileno=os.dup(env.LOCAL_FD.get()[0]))
    try:
        world = LocalWorld(link, env.LOCAL_RANK.get(), env.LOCAL_SIZE.get())
    finally:
        link.close()
    try:
        world.all_gather(b"", timeout_s)
    except BaseException:
        world.close()
        raise
    return world


class LocalWorld(World):
    """The client half of a Hub: one channel of its own, so that several communicators never mix."""

    name = "local"

    def __init__(self, link: socket.socket, rank: int, size: int) -> None:
        """Open a channel over `link`, this rank's socket to the launcher, which stays the caller's."""
        self.rank = self.local_rank = rank
        self.size = size
        self._round = 0
        self._lost = ""
        self._inbox = bytearray()
        self._channel, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(link, [b"join"], [theirs.fileno()])
            except OSError:
                self._channel.close()
                self._fail("the launcher is gone")

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Return every rank's bytes in rank order."""
        if self._channel.fileno() < 0:
            raise CommError(f"rank {self.rank}: this LocalWorld is closed; make a new one with init()")
        if self._lost:
            self._fail(self._lost)
        self._round += 1
        deadline = time.monotonic() + timeout_s
        self._send(MINE, data, deadline)
        answer = self._answer(deadline)
        if answer is None:
            self._send(WHO, b"", time.monotonic() + ANSWER_S)
            answer = self._answer(time.monotonic() + ANSWER_S)
        kind, payload = answer or (MISSING, b"")
        if kind == MISSING:
            who = payload.decode() or "its launcher, which does not answer"
            raise CommTimeout(
                f"rank {self.rank} waited {timeout_s:g} s in exchange {self._round} (local) for {who}; "
                f"raise timeout_s if they are only late"
            )
        return self._split(payload)

    def close(self) -> None:
        """Leave the channel; ranks that wait for this one are told."""
        self._channel.close()

    def _answer(self, deadline: float) -> tuple[bytes, bytes] | None:
        """Return the answer to this round, None at the deadline; answers to rounds given up are skipped."""
        while (frame := self._frame(deadline)) is not None:
            kind, round_, payload = frame
            if kind == LOST:
                self._fail(payload.decode())
            if round_ == self._round:
                return kind, payload
        return None

    def _frame(self, deadline: float) -> tuple[bytes, int, bytes] | None:
        while (frame := take_frame(self._inbox)) is None:
            self._channel.settimeout(max(deadline - time.monotonic(), 1e-3))
            try:
                piece = self._channel.recv(1 << 20)
            except TimeoutError:
                return None
            except OSError:
                piece = b""
            if not piece:
                self._fail("the launcher is gone")
            self._inbox += piece
        return frame

    def _send(self, kind: bytes, data: bytes, deadline: float) -> None:
        sent = False
        self._channel.settimeout(max(deadline - time.monotonic(), 1e-3))
        try:
            self._channel.sendall(HEADER.pack(kind, self._round, len(data)) + data)
            sent = True
        except TimeoutError:
            raise CommTimeout(f"rank {self.rank}: the launcher took no data before the deadline") from None
        except OSError:
            self._fail("the launcher is gone")
        finally:
            if not sent:  # half a frame may be out: nothing that follows would be understood
                self.close()

    def _split(self, payload: bytes) -> list[bytes]:
        sizes = struct.unpack_from(f"<{self.size}Q", payload)
        parts, start = [], 8 * self.size
        for size in sizes:
            parts.append(payload[start : start + size])
            start += size
        return parts

    def _fail(self, why: str) -> None:
        self._lost = why
        raise PeerLost(f"rank {self.rank}: {why} (local exchange {self._round})")


def take_frame(inbox: bytearray) -> tuple[bytes, int, bytes] | None:
    """Remove and return the first whole frame, None while there is none."""
    if len(inbox) < HEADER.size:
        return None
    kind, round_, length = HEADER.unpack_from(inbox)
    end = HEADER.size + length
    if len(inbox) < end:
        return None
    payload = bytes(memoryview(inbox)[HEADER.size : end])
    del inbox[:end]
    return kind, round_, payload


def _is_link(fd: int, inode: int) -> bool:
    """Whether it is the launcher's socket; a child that inherited the variables alone may have another of its own."""
    try:
        there = os.fstat(fd)
        return stat.S_ISSOCK(there.st_mode) and there.st_ino == inode
    except OSError:
        return False
