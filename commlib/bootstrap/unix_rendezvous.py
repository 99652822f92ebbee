"""How ranks of one host find each other: one process serves a unix socket, and the others connect to it.

The socket is in the abstract namespace: no port is open, and no file stays behind a killed process. Both sides ask the
kernel for the other's user before they read a byte, so that no other user joins, reads or writes. The name ends at
random, so that nobody else can take it first: it is the identity of this job among those that know the same place. The
launcher passes it to its ranks; where rank 0 serves, the others look it up in the kernel's list of sockets.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import secrets
import select
import socket
import struct
import threading
import time
import weakref
from pathlib import Path
from typing import NamedTuple

from commlib.bootstrap.exchange import Exchange, message, read_message
from commlib.bootstrap.process_info import process_info
from commlib.bootstrap.world import two_processes
from commlib.debug.starting import Waiting
from commlib.errors import CommTimeout, PeerLost, Unsupported
from commlib.users import current_user

UNIX_SOCKETS = Path("/proc/net/unix")  # of this network namespace, in which a name is known
BACKLOG = 4096  # the kernel's limit
HELLO_S = 10.0  # for a client to say which rank it is
REPLY_S = 1.0  # for the other servers of a place to reply, once one has let this rank in
ANSWERS_S = 5.0  # for clients to take their answers when the server closes
LINGER_S = 1.0  # how long it answers that the ranks disagree
COMPLETE_PAUSE_S = 0.02  # between two clients once all ranks have joined: connections must not cost rank 0 much
MIN_PAUSE_S, MAX_PAUSE_S = 0.002, 0.1  # between two looks for a server
BROKEN = (OSError, EOFError)  # what reading raises when the other side ends, also half-way
NOBODY = "nobody serves there; is it running, on this host and as this user?"
LEFT = "it is still in a communicator that this rank has left"


class Place(NamedTuple):
    """Where ranks meet: all of them know `key`, messages call it `label`."""

    key: str
    label: str
    server: str = ""  # the name of its server, where the ranks know it from the start

    @property
    def prefix(self) -> str:
        return f"commlib-{hashlib.sha256(self.key.encode()).hexdigest()[:16]}-"

    def servers(self) -> list[str]:
        """Return the names of all servers here, no matter whose, in random order: some may be of another user."""
        if self.server:
            return [self.server]
        listening = rb" 00010000 \w+ 01 +\d+ @(%s[0-9a-f]{16})$" % self.prefix.encode()
        try:
            sockets = UNIX_SOCKETS.read_bytes()
        except OSError as error:
            raise Unsupported(
                f"{UNIX_SOCKETS}, where ranks of one host find each other, cannot be read ({error.strerror}); start "
                f"them with `commlib run`, or give them an address that is not loopback"
            ) from None
        names = [name.decode() for name in re.findall(listening, sockets, re.MULTILINE)]
        random.shuffle(names)
        return names


class Hello(NamedTuple):
    """What a client says first: which rank it is, of how many, and which process."""

    rank: int
    size: int
    pid: int
    pid_namespace: str

    @classmethod
    def read(cls, head: object) -> Hello:
        """Check what a client sent; EOFError if no rank sends that."""
        if isinstance(head, list) and [*map(type, head)] == [int, int, int, str] and head[0] >= 0:
            return cls(*head)
        raise EOFError


class Reply(NamedTuple):
    """What a server answers: "in"; "later" to who has been in; "wrong" or "timeout", as an Exchange does, and why."""

    kind: str
    reason: str = ""


def hello(rank: int, size: int) -> Hello:
    info = process_info()
    return Hello(rank, size, info.pid, info.pid_namespace)


class RendezvousServer:
    """Serves the ranks of one job: rank 0 for one world, the launcher for as many as the ranks make."""

    def __init__(self, size: int, place: Place, *, several: bool = False) -> None:
        """`several`: the n-th connection of each rank belongs to the n-th world, whichever process of it comes."""
        self.size, self.several = size, several
        self.name = f"{place.prefix}{secrets.token_hex(8)}"
        self._label, self._user = place.label, current_user()
        self._closed = False
        self._lock = threading.Lock()  # guards what follows
        self._worlds: dict[int, Exchange] = {} if several else {0: Exchange(size)}
        self._turns = dict.fromkeys(range(size), 0)  # rank → its next world
        self._lost: dict[int, str] = {}  # rank → what happened to it, also for worlds to come
        self._clients: dict[socket.socket, threading.Thread] = {}
        self._listener = not_for_children(socket.socket(socket.AF_UNIX))
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(BACKLOG)
        self._thread = threading.Thread(target=self._accept_clients, name="commlib-rendezvous", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def lose(self, rank: int, reason: str) -> None:
        """Tell all worlds, those to come too, that `rank` is gone: "was killed by SIGKILL"."""
        with self._lock:
            self._lost.setdefault(rank, reason)
            for world in self._worlds.values():
                world.lose(rank, reason)

    def end(self, reason: str) -> None:
        """Tell all ranks, now and later, what is wrong."""
        for world in list(self._worlds.values()):
            world.end("wrong", reason)

    def close(self) -> None:
        """Give the answers that there are, disconnect everyone, and wait for the threads."""
        if not self.several and self._worlds[0].ended:
            time.sleep(LINGER_S)
        self.abandon()
        if self._thread.ident is not None:
            self._thread.join()
        self._listener.close()
        with self._lock:
            clients = dict(self._clients)
        deadline = time.monotonic() + ANSWERS_S
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):  # first no more questions, then no more answers
            for sock, thread in clients.items():
                with contextlib.suppress(OSError):  # its thread has closed it
                    sock.shutdown(how)
                thread.join(max(deadline - time.monotonic(), 0) if how == socket.SHUT_RD else None)

    def abandon(self) -> None:
        """Stop serving without a wait."""
        self._closed = True
        with contextlib.suppress(OSError):  # it is closed, or its process is our parent
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it
        for world in list(self._worlds.values()):
            world.stop()

    def _accept_clients(self) -> None:
        with self._listener:
            while not self._closed:
                if self._is_complete():
                    time.sleep(COMPLETE_PAUSE_S)
                try:
                    sock = not_for_children(self._listener.accept()[0])
                    if peer_user(sock) != self._user:
                        sock.close()
                        continue
                except OSError:  # closed; or out of descriptors, or the client has gone
                    time.sleep(0.01)
                    continue
                thread = threading.Thread(target=self._serve_client, args=(sock,), name="commlib-client", daemon=True)
                with self._lock:
                    self._clients[sock] = thread
                thread.start()

    def _is_complete(self) -> bool:
        with self._lock:
            return bool(self._worlds) and all(len(world.members) == self.size for world in self._worlds.values())

    def _serve_client(self, sock: socket.socket) -> None:
        with contextlib.suppress(*BROKEN), sock, sock.makefile("rwb") as file:
            sock.settimeout(HELLO_S)
            client = Hello.read(read_message(file)[0])
            world, reply = self._admit(client)
            file.write(message(reply))
            file.flush()
            if world is not None:
                sock.settimeout(None)
                world.serve(sock, file, client.rank)
        with self._lock:
            del self._clients[sock]

    def _admit(self, client: Hello) -> tuple[Exchange | None, Reply]:
        rank, process = client.rank, (client.pid, client.pid_namespace)
        with self._lock:
            world = self._next_world(rank) if self.several else self._worlds[0]
            holder = world.members.get(rank)
            if not self.several and (rank in world.lost or holder == process):
                return None, Reply("later")
            if holder is not None:
                world.end("wrong", two_processes(rank, holder[0], client.pid, self._label))
            elif client.size != self.size:
                numbers = f"rank {rank} expects {client.size}, rank 0 {self.size}"
                world.end(
                    "wrong",
                    f"ranks disagree on their number: {numbers} ({self._label}); start all of them with the same",
                )
            if world.ended:
                return None, Reply(*world.ended)
            world.members[rank] = process
            return world, Reply("in")

    def _next_world(self, rank: int) -> Exchange:
        for number in [number for number, world in self._worlds.items() if len(world.lost) == self.size]:
            del self._worlds[number]
        number = self._turns[rank]
        self._turns[rank] += 1
        if number not in self._worlds:
            self._worlds[number] = Exchange(self.size)
            self._worlds[number].lost.update(self._lost)
        return self._worlds[number]


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
        """Say hello at the servers that are new."""
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
        """Wait for replies, and raise what is wrong."""
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


def peer_user(sock: socket.socket) -> int:
    """Return the user of the process at the other end of a unix socket, as the kernel knows it."""
    _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(user)


_OPEN: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def not_for_children(sock: socket.socket) -> socket.socket:
    """Have forked children close it: a child that lives longer would keep a dead rank's socket open."""
    _OPEN.add(sock)
    return sock


def _close_in_child() -> None:
    for sock in list(_OPEN):
        if sock.fileno() >= 0:
            os.close(sock.detach())


os.register_at_fork(after_in_child=_close_in_child)
