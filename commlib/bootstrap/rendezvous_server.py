"""How ranks of one host find each other: one process serves a unix socket, and the others connect to it.

The socket is in the abstract namespace: no port is open, and no file stays behind a killed process. Both sides ask the
kernel for the other's user before they read a byte, so that no other user joins, reads or writes. The name ends at
random, so that nobody else can take it first: it is the identity of this job among those that know the same place. The
launcher passes it to its ranks; where rank 0 serves, the others look it up in the kernel's list of sockets.

In each round of a world, each rank sends its bytes to the server, which answers with the bytes of all ranks. A message
is a line of JSON and then bytes. A rank sends [round, timeout_s] with its bytes, or null when it leaves. The answer is
one of

    ["all", ""]            with the bytes of every rank in rank order
    ["waiting", ranks]     who has not come so far; another answer follows
    ["late", ranks]        who did not come by the deadline
    ["lost", reason]       a rank is gone
    ["wrong", reason]      no round of this world can complete: ValueError
    ["timeout", reason]    the same: CommTimeout, as a rank gave up in the first round, in which the ranks come together
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from commlib.bootstrap.world import Identity, process_info, two_processes
from commlib.counts import ranks_text
from commlib.debug.starting import Waiting
from commlib.errors import Unsupported
from commlib.users import current_user

UNIX_SOCKETS = Path("/proc/net/unix")  # of this network namespace, in which a name is known
BACKLOG = 4096  # the kernel's limit
HELLO_S = 10.0  # for a client to say which rank it is
ANSWERS_S = 5.0  # for clients to take their answers when the server closes
LINGER_S = 1.0  # how long it answers that the ranks disagree
COMPLETE_PAUSE_S = 0.02  # between two clients once all ranks have joined: connections must not cost rank 0 much
CHECK_S = 0.2  # between two checks whether a rank that waits is still connected
MAX_LINE_BYTES = 1 << 20
BROKEN = (OSError, EOFError)  # what reading raises when the other side ends, also half-way


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


LAUNCHER = Place("launcher", "the launcher")  # where a launcher serves its ranks


class Hello(NamedTuple):
    """What a client says first: which rank it is, of how many, and which process."""

    rank: int
    size: int
    pid: int
    pid_namespace: str

    @classmethod
    def of(cls, who: Identity) -> Hello:
        info = process_info()
        return cls(who.rank, who.size, info.pid, info.pid_namespace)

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


Answer = tuple[str, "list[bytes] | str"]


def message(head: object, parts: Sequence[bytes] = ()) -> bytes:
    return b"".join([json.dumps([head, *map(len, parts)]).encode(), b"\n", *parts])


def read_message(file: io.BufferedIOBase) -> tuple[Any, list[bytes]]:
    """Read a message; EOFError if it ends half-way, or is none."""
    line = file.readline(MAX_LINE_BYTES)
    try:
        head, *lengths = json.loads(line)
        parts = [file.read(length) for length in lengths]
    except (ValueError, TypeError, RecursionError):
        raise EOFError from None
    if [*map(len, parts)] != lengths:
        raise EOFError
    return head, parts


class Exchange:
    """The rounds of one world; `serve` answers one rank until it leaves."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.members: dict[int, tuple[int, str]] = {}  # rank → the process that joined
        self.lost: dict[int, str] = {}  # rank → what happened to it
        self.ended: tuple[str, str] | None = None  # the answer to every question from now on
        self._rounds: dict[int, dict[int, bytes]] = {}
        self._stopped = False
        self._changed = threading.Condition()

    def lose(self, rank: int, reason: str) -> None:
        """Tell all who wait, now and later, that `rank` is gone: "was killed by SIGKILL"."""
        with self._changed:
            self.lost.setdefault(rank, reason)
            self._changed.notify_all()

    def end(self, kind: str, reason: str) -> None:
        """Answer every question with this from now on: "wrong" or "timeout", and the reason."""
        with self._changed:
            self.ended = self.ended or (kind, reason)
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def serve(self, sock: socket.socket, file: io.BufferedIOBase, rank: int) -> None:
        """Answer a rank's questions until it leaves; one that leaves without a question may join again."""
        reason = ""
        try:
            while (question := read_message(file))[0] is not None:
                reason = "ended"
                (number, timeout_s), (data,) = question
                for kind, answer in self._answers(sock, rank, number, timeout_s, data):
                    head, parts = (answer, []) if isinstance(answer, str) else ("", answer)
                    file.write(message([kind, head], parts))
                    file.flush()
            reason = reason and "closed its communicator"
        finally:
            if reason:
                self.lose(rank, reason)
            else:
                self.members.pop(rank, None)

    def _answers(self, sock: socket.socket, rank: int, number: int, timeout_s: float, data: bytes) -> Iterator[Answer]:
        """Yield who is missing as long as the rank has to wait, and at last the answer."""
        deadline, waiting = time.monotonic() + timeout_s, Waiting(rank, self.size, timeout_s)
        with self._changed:
            round_ = self._rounds.setdefault(number, {})
            round_[rank] = data
            if len(round_) == self.size:
                del self._rounds[number]
                self._changed.notify_all()
        while True:
            left_s = deadline - time.monotonic()
            with self._changed:
                self._changed.wait_for(lambda: self._answer(sock, round_) is not None, max(min(left_s, CHECK_S), 0))
                answer = self._answer(sock, round_)
                missing = ranks_text([peer for peer in range(self.size) if peer not in round_])
            if answer is not None:
                yield answer
                return
            if left_s <= 0:
                if number == 1:
                    self.end("timeout", f"rank {rank} waited {timeout_s:g} s for {missing}")
                yield "late", missing
                return
            if waiting.due():
                yield "waiting", missing

    def _answer(self, sock: socket.socket, round_: dict[int, bytes]) -> Answer | None:
        if len(round_) == self.size:
            return "all", [round_[peer] for peer in range(self.size)]
        if self.ended:
            return self.ended
        if self.lost:
            rank, reason = next(iter(self.lost.items()))
            return "lost", f"rank {rank} {reason}"
        if self._stopped or _hung_up(sock):
            raise EOFError
        return None


def _hung_up(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(poll.poll(0))


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
