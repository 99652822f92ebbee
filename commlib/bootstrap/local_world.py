"""Ranks of one host find each other: rank 0 serves a unix socket, and who connects gets memory with a store.

The socket is in the abstract namespace: no port is open, and no file stays behind a killed process. Both sides ask the
kernel for the other's user before they send or read, so that no other user joins, reads or writes. The name ends at
random, so that nobody else can take it first; the other ranks look it up in the kernel's list of sockets.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from commlib.bootstrap.store import ONLY_WORLD, StoreWorld, claim_key, refuse
from commlib.bootstrap.world import Identity, ProcessInfo, process_info, two_processes
from commlib.debug.starting import Waiting
from commlib.errors import CommTimeout, Unsupported
from commlib.users import current_user

UNIX_SOCKETS = Path("/proc/net/unix")  # of this network namespace, in which a name is known
BACKLOG = 4096  # the kernel's limit
LINGER_S = 1.0  # how long rank 0 serves when the ranks cannot come together, which the others read in its store
REPLY_S = 1.0  # for a server to send its memory
COMPLETE_PAUSE_S = 0.02  # between two clients once all ranks have come: connections must not cost rank 0 much
MAX_PAUSE_S = 0.1  # between two looks for a server
NOBODY = "nobody serves there; is it running, on this host and as this user?"
LEFT = "it is still in a communicator that this rank has left"
SILENT = "its process does not answer; is it stopped?"


class Place(NamedTuple):
    """Where ranks meet: all of them know `key`, messages call it `label`."""

    key: str
    label: str
    of_one_job: bool = False  # nobody else knows the key: other processes with one number are of other worlds

    @property
    def prefix(self) -> str:
        return f"commlib-{hashlib.sha256(self.key.encode()).hexdigest()[:16]}-"

    def servers(self) -> list[str]:
        """Return the names of all servers here, no matter whose, the newest first."""
        listening = rb" 00010000 \w+ 01 +\d+ @(%s[0-9a-f]{32})$" % self.prefix.encode()
        try:
            sockets = UNIX_SOCKETS.read_bytes()
        except OSError as error:
            raise Unsupported(
                f"{UNIX_SOCKETS}, where ranks of one host find each other, cannot be read ({error.strerror}); give "
                f"them an address that is not loopback"
            ) from None
        return sorted((name.decode() for name in re.findall(listening, sockets, re.MULTILINE)), reverse=True)


def meet(name: str, place: Place, who: Identity, timeout_s: float) -> LocalWorld:
    """Join the other ranks at a place of this host, where rank 0 serves."""
    deadline = time.monotonic() + timeout_s
    server = Server(place) if who.rank == 0 else None
    try:
        store = _find(place, who, timeout_s)
        return LocalWorld(name, store, who, max(deadline - time.monotonic(), 0.1), server)
    except BaseException as error:
        if server is not None:
            if isinstance(error, ValueError):  # our other ranks are to know it, too
                time.sleep(LINGER_S)
            server.close()
        raise


class LocalWorld(StoreWorld):
    """The ranks of one host; rank 0 serves as long as it has the world, so that another job is seen."""

    def __init__(self, name: str, store: MemoryStore, who: Identity, timeout_s: float, server: Server | None) -> None:
        super().__init__(name, store, who, timeout_s)
        self._server = server
        if server is not None:
            server.complete = True
            weakref.finalize(self, server.close).atexit = False  # nobody may close this world

    def _delete(self, *keys: str) -> None:
        """Leave all to the end of the memory: a rank that has left must not take this world for a new one."""

    def close(self) -> None:
        super().close()
        self._store.close()
        if self._server is not None:
            self._server.close()


# --- the server, and how it is found ----------------------------------------------------------------------------------


class Server:
    """Sends the memory of a world to each process of this user that connects."""

    def __init__(self, place: Place) -> None:
        self.complete = False  # all ranks have come
        self._user, self._closed = current_user(), False
        self._memory = os.memfd_create("commlib.world")
        self._listener = socket.socket(socket.AF_UNIX)
        _LISTENERS.add(self._listener)
        self._listener.bind(f"\0{place.prefix}{time.monotonic_ns():016x}{secrets.token_hex(8)}")
        self._listener.listen(BACKLOG)
        self._thread = threading.Thread(target=self._serve, name="commlib-rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):  # it is closed, or its process is our parent
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        while not self._closed:
            try:
                with self._listener.accept()[0] as client:
                    if peer_user(client) == self._user:
                        socket.send_fds(client, [b"\0"], [self._memory])
            except OSError:  # closed; or out of descriptors, or the client has gone
                time.sleep(0 if self._closed else 0.01)
            if self.complete and not self._closed:
                time.sleep(COMPLETE_PAUSE_S)
        self._listener.close()
        os.close(self._memory)


def peer_user(sock: socket.socket) -> int:
    """Return the user of the process at the other end of a unix socket, as the kernel knows it."""
    _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(user)


def _find(place: Place, who: Identity, timeout_s: float) -> MemoryStore:
    """Return the store of a server in which this process is put down as its rank."""
    deadline = time.monotonic() + timeout_s
    claim, where = process_info(), f"rank 0 at {place.label}"
    with Waiting(who.rank, who.size, timeout_s) as waiting:
        while True:
            problem, stores = _look(place, claim, min(REPLY_S, timeout_s))
            # In all of them: two jobs that meet here both learn it.
            ours = [store for store in stores if _put_down(store, stores, place, who.rank)]
            if ours:
                return ours[0]
            if time.monotonic() >= deadline:
                raise CommTimeout(f"rank {who.rank} waited {timeout_s:g} s for {where}: {LEFT if stores else problem}")
            waiting.pause(where, MAX_PAUSE_S)


def _look(place: Place, claim: ProcessInfo, limit_s: float) -> tuple[str, list[MemoryStore]]:
    """Ask all servers of a place; return their stores, and what is wrong without one."""
    user, problem, stores = current_user(), NOBODY, list[MemoryStore]()
    for name in place.servers():
        try:
            owner, memory = _asked(name, user, limit_s)
        except TimeoutError:
            problem = SILENT
        except OSError:  # it has just ended, or has no room
            continue
        else:
            if owner == user:
                stores.append(MemoryStore(memory, place.label, claim))
            elif problem == NOBODY:
                problem = f"only a process of user {owner} serves there; all ranks must run as one user"
    return problem, stores


def _asked(name: str, user: int, limit_s: float) -> tuple[int, int]:
    """Return the user of a server and, if that is ours, the memory that it sends."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(limit_s)
        sock.connect(f"\0{name}")
        if (owner := peer_user(sock)) != user:
            return owner, -1
        _, memory, _, _ = socket.recv_fds(sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not memory:
            raise ConnectionError
        return owner, memory[0]


def _put_down(store: MemoryStore, stores: Sequence[MemoryStore], place: Place, rank: int) -> bool:
    """Put this process down as a rank, unless another one is: one that lives is an error, on all ranks at the place."""
    holder = ProcessInfo.read(store.compare_set(claim_key(ONLY_WORLD, rank), "", store.claim.encode()))
    if holder == store.claim:
        return True
    if store.claim.meets(holder) and not place.of_one_job:
        error = ValueError(two_processes(rank, holder.pid, os.getpid(), place.label))
        for each in stores:
            refuse(each, ONLY_WORLD, error)
        raise error
    return False


_LISTENERS: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_child() -> None:
    """A child that lives longer would keep a dead rank's socket open."""
    for listener in list(_LISTENERS):
        listener.close()


os.register_at_fork(after_in_child=_close_in_child)


# --- the memory -------------------------------------------------------------------------------------------------------


class MemoryStore:
    """The calls of torch's stores that a StoreWorld makes, on memory that all ranks have: a line of JSON a change."""

    host = "127.0.0.1"

    def __init__(self, memory: int, label: str, claim: ProcessInfo) -> None:
        # Opened anew: the descriptor that was sent shares its lock with its sender.
        self._fd = os.open(f"/proc/self/fd/{memory}", os.O_RDWR | os.O_CLOEXEC)
        os.close(memory)
        self._close = weakref.finalize(self, os.close, self._fd)
        self.label, self.claim = label, claim
        self._values: dict[str, bytes] = {}
        self._end = 0  # of what `_values` has

    def close(self) -> None:
        self._fd = -1
        self._close()

    def set(self, key: str, value: bytes | str) -> None:
        with self._locked():
            self._put(key, value)

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        with self._locked():
            return [self._values[key] for key in keys]

    def check(self, keys: Sequence[str]) -> bool:
        with self._locked():
            return all(key in self._values for key in keys)

    def compare_set(self, key: str, expected: str, value: bytes | str) -> bytes:
        with self._locked():
            if self._values.get(key, b"") == expected.encode():
                self._put(key, value)
            return self._values.get(key, expected.encode())

    def add(self, key: str, number: int) -> int:
        with self._locked():
            self._put(key, str(int(self._values.get(key, 0)) + number))
            return int(self._values[key])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, with all changes so far in `_values`."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            data = os.pread(self._fd, os.fstat(self._fd).st_size - self._end, self._end)
            self._end += len(data)
            for line in data.splitlines():
                with contextlib.suppress(ValueError):  # of a process that was killed while it wrote
                    key, text = json.loads(line)
                    self._values[key] = text.encode("latin-1")
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _put(self, key: str, value: bytes | str) -> None:
        data = value.encode() if isinstance(value, str) else value
        line = json.dumps([key, data.decode("latin-1")])
        self._end += os.pwrite(self._fd, b"\n" + line.encode(), self._end)
        self._values[key] = data
