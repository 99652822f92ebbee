"""The world of ranks of one host: this rank looks for the process that serves the exchange, and asks it."""

from __future__ import annotations

import contextlib
import select
import socket
import time
import weakref
from typing import NoReturn

from commlib.bootstrap.rendezvous_server import (
    BROKEN,
    Hello,
    Place,
    RendezvousServer,
    Reply,
    message,
    not_for_children,
    peer_user,
    read_message,
)
from commlib.bootstrap.world import Identity, ProcessInfo, World, process_info
from commlib.debug.starting import Waiting
from commlib.errors import CommError, CommTimeout, PeerLost
from commlib.users import current_user

REPLY_S = 1.0  # for the other servers of a place to reply, once one has let this rank in
MIN_PAUSE_S, MAX_PAUSE_S = 0.002, 0.1  # between two looks for a server
NOBODY = "nobody serves there; is it running, on this host and as this user?"
LEFT = "it is still in a communicator that this rank has left"
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
        channel = connect(place, Hello.of(who), timeout_s)
    except BaseException as error:
        if server is not None:
            if isinstance(error, ValueError):  # our other ranks are to know it, too
                server.end(str(error))
            server.close()
        raise
    world = UnixSocketWorld(name, who, channel, place.label if place.server else "rank 0", server)
    try:
        left_s = round(max(deadline - time.monotonic(), 0.1), 1)
        world.infos = [ProcessInfo(*fields) for fields in world.exchange(process_info(), left_s)]
    except BaseException:
        world.close()
        raise
    world.local_rank = world.count_local_rank() if who.local_rank is None else who.local_rank
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


def connect(place: Place, client: Hello, timeout_s: float) -> socket.socket:
    """Return a socket to the server of a place that lets this rank in."""
    deadline, pause_s = time.monotonic() + timeout_s, MIN_PAUSE_S
    where = place.label if place.server else f"rank 0 at {place.label}"
    with _Search(place, client) as search, Waiting(client.rank, client.size, timeout_s) as waiting:
        while True:
            search.ask()
            search.read_replies(pause_s)
            if channel := search.result():
                return channel
            if time.monotonic() >= deadline:
                raise CommTimeout(f"rank {client.rank} waited {timeout_s:g} s for {where}: {search.problem}")
            if waiting.due():
                waiting.tell(where)
            pause_s = min(pause_s * 2, MAX_PAUSE_S)


class _Search:
    """A rank's search for its server: it asks all of a place, so that two jobs that meet there both learn it."""

    def __init__(self, place: Place, client: Hello) -> None:
        self._place, self._client = place, client
        self._user = current_user()
        self.problem = NOBODY
        self._others: dict[str, int] = {}  # servers of other users, which may be very many: each is asked once
        self._silent: dict[str, socket.socket] = {}  # the servers that have not replied yet
        self._channel: socket.socket | None = None  # to the server that has let us in
        self._patience = 0.0  # until when the others may reply

    def __enter__(self) -> _Search:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (*self._silent.values(), *([self._channel] if self._channel else [])):
            sock.close()

    def ask(self) -> None:
        if self._channel is not None:
            return
        self.problem = NOBODY
        for name in self._place.servers():
            if name not in self._silent and name not in self._others:
                self._say_hello(name)
        if self._silent:
            self.problem = "its process does not answer; is it stopped?"
        elif self._others:
            user = next(iter(self._others.values()))
            self.problem = f"only a process of user {user} serves there; all ranks must run as one user"
        elif self._place.server and self.problem == NOBODY:
            raise PeerLost(f"rank {self._client.rank}: {self._place.label} is gone")

    def read_replies(self, limit_s: float) -> None:
        poll = select.poll()
        names = {sock.fileno(): name for name, sock in self._silent.items()}
        for fd in names:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(limit_s * 1000):
            sock = self._silent.pop(names[fd])
            reply = _read_reply(sock)
            if reply.kind == "in" and self._channel is None:
                self._channel, self._patience = sock, time.monotonic() + REPLY_S
                continue
            sock.close()
            if reply.kind == "wrong":
                raise ValueError(reply.reason)
            if reply.kind == "timeout":
                raise CommTimeout(f"rank {self._client.rank}: {reply.reason} ({self._place.label})")
            if reply.kind == "later":
                self.problem = LEFT

    def result(self) -> socket.socket | None:
        """Return the socket, once the other servers have replied or had the time to."""
        channel = self._channel
        if channel is None or (self._silent and time.monotonic() < self._patience):
            return None
        self._channel = None
        channel.settimeout(None)
        return channel

    def _say_hello(self, name: str) -> None:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        try:
            sock.connect(f"\0{name}")
            if (user := peer_user(sock)) == self._user:
                sock.send(message(self._client))
                self._silent[name] = not_for_children(sock)
                return
            self._others[name] = user
        except BlockingIOError:
            self.problem = "too many processes connect to it"
        except OSError:  # it has just ended
            pass
        sock.close()


def _read_reply(sock: socket.socket) -> Reply:
    sock.settimeout(REPLY_S)
    try:
        with sock.makefile("rb") as file:
            return Reply(*read_message(file)[0])
    except (*BROKEN, TypeError):
        return Reply("gone")
