"""The world of ranks of one host: a socket to the process that serves the exchange."""

from __future__ import annotations

import contextlib
import socket
import time
import weakref
from typing import NoReturn

from commlib.bootstrap.exchange import message, read_message
from commlib.bootstrap.launcher import Identity
from commlib.bootstrap.neighbours import local_rank
from commlib.bootstrap.process_info import ProcessInfo, process_info
from commlib.bootstrap.unix_rendezvous import BROKEN, Place, RendezvousServer, connect, hello
from commlib.bootstrap.world import World
from commlib.debug.starting import Waiting
from commlib.errors import CommError, CommTimeout, PeerLost

ANSWER_S = 2.0  # how long after its deadline a rank waits for the server to say who is missing
MAX_WAIT_S = 1e6  # that a socket can wait


def meet(name: str, place: Place, who: Identity, timeout_s: float) -> UnixSocketWorld:
    """Join the other ranks at a place of this host, where rank 0 serves unless the launcher does."""
    deadline = time.monotonic() + timeout_s
    server = None
    if who.rank == 0 and not place.server:
        server = RendezvousServer(who.size, place)
        server.start()
    try:
        channel = connect(place, hello(who.rank, who.size), timeout_s)
    except BaseException as error:
        if server is not None:
            if isinstance(error, ValueError):  # our other ranks are to know it, too
                server.end(str(error))
            server.close()
        raise
    world = UnixSocketWorld(name, who, channel, place.label if place.server else "rank 0", server)
    try:
        left_s = round(max(deadline - time.monotonic(), 0.1), 1)
        infos = [ProcessInfo.read(text) for text in world.all_gather(process_info().encode(), left_s)]
    except BaseException:
        world.close()
        raise
    world.local_rank = local_rank(who.rank, infos) if who.local_rank is None else who.local_rank
    return world


class UnixSocketWorld(World):
    """A rank's connection to an Exchange; rank 0 also has the server, unless the launcher has it."""

    address = "127.0.0.1"  # all of its ranks are on this machine

    def __init__(
        self, name: str, who: Identity, channel: socket.socket, serving: str, server: RendezvousServer | None
    ) -> None:
        self.name, self.rank, self.size = name, who.rank, who.size
        self._channel, self._serving, self._server = channel, serving, server
        self._round = 0
        self._lost = ""
        if server is not None:  # a communicator that nobody closes leaves no server behind
            weakref.finalize(self, server.abandon).atexit = False

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        if self._lost:
            self._raise_lost(self._lost)
        if self._channel.fileno() < 0:
            raise CommError(f"rank {self.rank}: this {type(self).__name__} is closed; make a new one with init()")
        self._round += 1
        try:
            kind, answer = self._ask(data, timeout_s)
        except TimeoutError:
            kind, answer = "late", f"{self._serving}, which does not answer"
        except BROKEN:
            kind, answer = "lost", f"{self._serving} is gone"
        if not isinstance(answer, str):
            return answer
        if kind == "late":
            raise self.late(timeout_s, self._round, answer)
        if kind == "lost":
            self._raise_lost(answer)
        raise ValueError(answer) if kind == "wrong" else CommTimeout(f"rank {self.rank}: {answer} ({self.name})")

    def close(self) -> None:
        """Leave; ranks that wait for this one get an error, and rank 0 lets the others read their answers first."""
        if self._channel.fileno() >= 0:
            with contextlib.suppress(OSError):  # nobody listens any more
                self._channel.send(message(None), socket.MSG_DONTWAIT)
            self._channel.close()
        if self._server is not None:
            self._server.lose(self.rank, "closed its communicator")
            self._server.close()
            self._server = None

    def _ask(self, data: bytes, timeout_s: float) -> tuple[str, list[bytes] | str]:
        answered = False
        limit_s = min(timeout_s + ANSWER_S, MAX_WAIT_S)
        deadline = time.monotonic() + limit_s
        self._channel.settimeout(limit_s)
        try:
            self._channel.sendall(message([self._round, timeout_s], [data]))
            with self._channel.makefile("rb") as file, Waiting(self.rank, self.size, timeout_s) as waiting:
                (kind, text), parts = read_message(file)
                while kind == "waiting":
                    waiting.tell(text)
                    self._channel.settimeout(max(deadline - time.monotonic(), ANSWER_S))
                    (kind, text), parts = read_message(file)
            answered = True
        finally:
            if not answered:  # half a question may be out: the server would not understand what follows
                self._channel.close()
        return kind, parts if kind == "all" else text

    def _raise_lost(self, reason: str) -> NoReturn:
        self._lost = reason
        raise PeerLost(f"rank {self.rank}: {reason} ({self.name} exchange {self._round})")
