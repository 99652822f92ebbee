"""Where ranks of one host find rank 0: a unix socket without a file, at which the kernel says whose process comes.

No port is open. The name of a door begins with a digest of the place that all ranks know and goes on at random, so that
nobody else can take it first; the other ranks find it in the kernel's list of sockets. Both sides ask the kernel for
the other's user before they read a byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import secrets
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from commlib.bootstrap.exchange import Attendants, Exchange
from commlib.bootstrap.neighbours import kinship
from commlib.bootstrap.world import two_processes
from commlib.errors import Unsupported
from commlib.users import own_user

UNIX_SOCKETS = Path("/proc/net/unix")  # of this network namespace, in which a name is known
BACKLOG = 4096  # the kernel's own limit
GREETING_S = 10.0  # for who has come in to say its name
MOST_BYTES = 1 << 14  # of a greeting or a reply
DRAIN_S = 5.0  # how long a closing door waits for those inside to have read
NO_MESSAGE = (ValueError, TypeError, RecursionError)  # what reading shows that is not JSON, or not of this form
FULL_NAP_S = 0.02  # between two guests once all ranks are inside: who knocks all the time must not cost rank 0 much
FEW = 16  # doors of one place; more are look-alikes that another user has made
ROUND_S = 0.2  # how long a rank knocks before it looks for new doors
LINGER_S = 1.0  # how long it tells who comes that the ranks disagree


class Place(NamedTuple):
    """Where ranks meet: `key` is known to them alone or to all of one user's jobs, `said` is what messages call it."""

    key: str
    said: str

    @property
    def prefix(self) -> str:
        """How the name of each door begins."""
        return f"commlib-{hashlib.sha256(self.key.encode()).hexdigest()[:16]}-"


class Greeting(NamedTuple):
    """What a rank says at the door; no line of JSON is longer than MOST_BYTES."""

    rank: int
    size: int
    pid: int


class Reply(NamedTuple):
    """What it is told: "in"; "later", when it has been in; "wrong" or "timeout", as an Exchange answers, and why.

    "nobody", "stranger" and "silent" stand for no reply.
    """

    kind: str
    why: str = ""


class Door:
    """Rank 0's socket: lets each rank in once, and tells all who come and all inside when two come as one."""

    def __init__(self, place: Place, size: int) -> None:
        self._place, self._size, self._user = place, size, own_user()
        self._exchange, self._attendants = Exchange(size, meets=True), Attendants()
        self._shut = False
        self._end: weakref.WeakMethod[Callable[[str], None]] | None = None
        self._lock = threading.Lock()  # guards what follows
        self._inside = {0: os.getpid()}  # rank → process
        self._told: set[tuple[int, int]] = set()  # who knows what is wrong
        self._name = f"{place.prefix}{secrets.token_hex(8)}"
        self._listener = not_for_children(socket.socket(socket.AF_UNIX))
        self._listener.bind(f"\0{self._name}")
        self._listener.listen(BACKLOG)
        self._thread = threading.Thread(target=self._watch, name="commlib-door", daemon=True)
        self._thread.start()

    def own_channel(self) -> socket.socket:
        """Return rank 0's own way in."""
        ours, theirs = map(not_for_children, socket.socketpair())
        self._attendants.serve(ours, self._exchange.answer, 0)
        return theirs

    def look_for_others(self, patience_s: float) -> None:
        """Knock at the doors of other ranks 0: that is how both learn that there are two."""
        deadline = time.monotonic() + ROUND_S
        for name in doors(self._place):
            if name != self._name and time.monotonic() < deadline:
                reply, _ = knock(name, Greeting(0, self._size, os.getpid()), patience_s)
                if reply.kind == "wrong":
                    self._exchange.end(*reply)

    def close(self) -> None:
        """Stop serving, once those inside have their answers."""
        self._exchange.drain(DRAIN_S)
        if self._exchange.ended:
            time.sleep(LINGER_S)
        self.abandon()
        self._thread.join()
        self._attendants.close()

    def abandon(self) -> None:
        """Stop serving without a wait."""
        self._shut = True
        with contextlib.suppress(OSError):  # it is closed, or its process is our parent
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it
        self._exchange.stop()

    def when_mixed(self, end: Callable[[str], None]) -> None:
        """Have a method called when ranks of two jobs are found inside; its object may go before."""
        self._end = weakref.WeakMethod(end)

    def _watch(self) -> None:
        with self._listener:
            self._serve()

    def _serve(self) -> None:
        while not self._shut:
            if len(self._inside) == self._size:
                time.sleep(FULL_NAP_S)
            try:
                sock = not_for_children(self._listener.accept()[0])
                if user_of(sock) == self._user:
                    self._attendants.serve(sock, self._receive)
                else:
                    sock.close()
            except OSError:  # shut; or out of descriptors, or the guest has gone
                time.sleep(0.01)

    def _receive(self, sock: socket.socket) -> None:
        sock.settimeout(GREETING_S)
        try:
            guest = Greeting(*map(int, json.loads(_read_line(sock))))
        except NO_MESSAGE:
            return  # no rank speaks like that
        reply = self._verdict(guest)
        sock.sendall(json.dumps(reply).encode() + b"\n")
        if reply.kind == "in":
            sock.settimeout(None)
            try:
                self._exchange.answer(sock, guest.rank, joined=False)
            finally:
                with self._lock:
                    if guest.rank not in self._exchange.lost:  # it did not take the reply: it may come again
                        del self._inside[guest.rank]

    def _verdict(self, guest: Greeting) -> Reply:
        rank, size, pid = guest
        with self._lock:
            holder = self._inside.get(rank, pid)
            if (rank, pid) in self._told or rank in self._exchange.lost or self._inside.get(rank) == pid:
                return Reply("later")
            if holder != pid:
                why = two_processes(rank, holder, pid, self._place.said)
                self._exchange.end("wrong", why)
                if self._mixed(rank, holder, pid) and self._end and (end := self._end()):
                    end(why)
            elif size != self._size:
                self._exchange.end(
                    "wrong",
                    f"ranks disagree on their number: rank {rank} was told {size}, rank 0 {self._size} "
                    f"({self._place.said}); start all of them with the same",
                )
            if self._exchange.ended:
                self._told.add((rank, pid))
                return Reply(*self._exchange.ended)
            self._inside[rank] = pid
            return Reply("in")

    def _mixed(self, rank: int, holder: int, guest: int) -> bool:
        """Whether a guest shows that two jobs are inside: it is closer kin to the ranks inside than who has its number.

        Without it nobody knows: ranks of one job need not be kin. Two jobs whose ranks came alternately leave two ranks
        outside, which come, too.
        """
        others = [pid for number, pid in self._inside.items() if number != rank and 0 in (rank, number)]
        return any(kinship(guest, pid) > kinship(holder, pid) for pid in others)


def doors(place: Place) -> list[str]:
    """Return the names of the doors of a place, no matter whose; of many, those of this user's processes come first."""
    listening = rb" 00010000 \w+ 01 +(\d+) @(%s[0-9a-f]{16})$" % place.prefix.encode()
    try:
        sockets = UNIX_SOCKETS.read_bytes()
    except OSError as error:
        raise Unsupported(
            f"{UNIX_SOCKETS}, where ranks of one host find each other, cannot be read ({error.strerror}); start them "
            f"with `commlib run`, or give them an address that is not loopback"
        ) from None
    found = re.findall(listening, sockets, re.MULTILINE)
    random.shuffle(found)
    if len(found) > FEW:
        ours = _own_sockets()
        found.sort(key=lambda door: f"socket:[{door[0].decode()}]" not in ours)
    return [name.decode() for _, name in found]


def _own_sockets() -> set[str]:
    """Return the sockets of this user's processes, of those that this one sees."""
    found: set[str] = set()
    ours = rb"^Uid:\t\d+\t%d\t" % own_user()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or closed the socket
            if re.search(ours, (process / "status").read_bytes(), re.MULTILINE):
                found.update(map(os.readlink, (process / "fd").iterdir()))
    return found


def knock(name: str, greeting: Greeting, patience_s: float) -> tuple[Reply, socket.socket | None]:
    """Ask to be let in at a door; return the reply, and the socket if it is "in"."""
    ours, sock = own_user(), not_for_children(socket.socket(socket.AF_UNIX))
    try:
        sock.setblocking(False)
        sock.connect(f"\0{name}")
        if (user := user_of(sock)) != ours:
            sock.close()
            return Reply("stranger", str(user)), None
        sock.settimeout(patience_s)
        sock.sendall(json.dumps(greeting).encode() + b"\n")
        reply = Reply(*json.loads(_read_line(sock)))
    except TimeoutError:
        reply = Reply("silent")
    except (OSError, *NO_MESSAGE):
        reply = Reply("nobody")
    if reply.kind == "in":
        return reply, sock
    sock.close()
    return reply, None


def user_of(sock: socket.socket) -> int:
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


def _read_line(sock: socket.socket) -> bytes:
    with sock.makefile("rb") as file:
        return file.readline(MOST_BYTES)
