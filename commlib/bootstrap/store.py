"""StoreWorld: the exchange over a store, torch's or one in memory of this host (local_world.py)."""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout  # before Python 3.11 not the builtin
from functools import partial
from typing import Any, NoReturn, TypeVar, cast

from commlib import env
from commlib.bootstrap.world import Identity, ProcessInfo, World, process_info, two_processes
from commlib.counts import ranks_text
from commlib.debug.starting import Waiting
from commlib.errors import KINDS, CommError, CommTimeout, PeerLost, first_line
from commlib.worker import Worker

T = TypeVar("T")

DRAIN_S = 5.0  # how long the rank that serves the store waits at close for the others to have read
ANSWER_S = 1.0  # the shortest time that a store has to answer
HASH, SIGNATURE_BYTES = "sha256", 32
CHECK_S = 0.2  # between two checks for ranks that died or left
ONLY_WORLD = "world"  # the name of the one world of a store in which ranks have put themselves down already


class _Moved(Exception):
    """Rank 0 has named another world."""


class StoreWorld(World):
    """Each rank puts its bytes under a key of this round and reads the others'; the last reader cleans up.

    Rank 0 names the world, and every rank puts itself down for it. A store may hold worlds of before, also of ranks
    that were killed: a rank that waits in one of those follows when rank 0 names another.
    """

    def __init__(
        self, name: str, store: Any, who: Identity, timeout_s: float, *, serves: bool = False, secret: str = ""
    ) -> None:
        """`serves`: the store is in this process. `secret`: what only the ranks know, besides COMMLIB_SECRET."""
        self.name, self.rank, self.size = name, who.rank, who.size
        self.address = address_of(who.rank, store)
        self.infos: Sequence[ProcessInfo] = ()
        self._worker, self._deadline = Worker("store"), time.monotonic() + timeout_s
        self._store, self._serves, self._where = store, serves, getattr(store, "label", name)
        self._unread = ""  # a key of the last round, there until every rank has read it
        self._closed = False
        claimed = getattr(store, "claim", None)
        self._claim = claimed or process_info()
        deadline, everyone = self._deadline, None
        while everyone is None:
            self._deadline, self._round = deadline, 0
            if claimed:
                self._world = ONLY_WORLD
            elif self.rank == 0:
                self._world = self._name_world()
            else:
                self._world = self._join_world(timeout_s)
            self._key = (env.SECRET.get() + secret).encode()
            self._check_size()
            with contextlib.suppress(_Moved):
                everyone = self.all_gather(self._claim.encode(), round(max(deadline - time.monotonic(), 0.1), 1))
        self._raise_if_refused()
        self._key = hmac.digest(self._key, b"".join(everyone), HASH)  # of this world only
        self.infos = [ProcessInfo.read(data) for data in everyone]
        self.local_rank = self.count_local_rank() if who.local_rank is None else who.local_rank

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        self._round += 1
        self._deadline = time.monotonic() + timeout_s
        keys = [self._at(f"{self._round}/{rank}") for rank in range(self.size)]
        self._ask(lambda: self._store.set(keys[self.rank], self._signature(self.rank, data) + data))
        try:
            with Waiting(self.rank, self.size, timeout_s) as waiting:
                self._wait(keys, timeout_s, waiting)
            gathered = self._ask(lambda: self._store.multi_get(keys))
        finally:
            self._leave_round(keys)
        self._unread = keys[self.rank]
        return [self._checked(rank, signed) for rank, signed in enumerate(gathered)]

    def close(self) -> None:
        """Tell the others that no more rounds come from here; the serving rank lets them read first."""
        if self._closed:
            return
        self._closed = True
        self._deadline = time.monotonic() + DRAIN_S
        with contextlib.suppress(CommError):  # the store died before us: nobody is left to tell
            self._ask(self._drain)
            self._ask(lambda: self._store.set(self._at(f"left/{self.rank}"), ""))
            if self.rank == 0:
                self._ask(lambda: self._store.compare_set("commlib/world", self._world, ""))
            if self._ask(lambda: self._store.add(self._at("left"), 1)) == self.size:
                of_ranks = (f"{kind}/{rank}" for kind in ("left", "rank") for rank in range(self.size))
                self._delete(*map(self._at, ("size", "left", *of_ranks)))
        self._worker.close(CommError(f"rank {self.rank}: this world is closed"))

    def _name_world(self) -> str:
        name = secrets.token_hex(8)
        before = self._ask(lambda: self._store.compare_set("commlib/world", "", name)).decode()
        if before != name:  # rank 0 of before has another communicator open, or was killed, or is one of another job
            key = claim_key(before, 0)
            if self._ask(lambda: self._store.check([key])):
                self._refuse_second(self._ask(lambda: self._store.get(key)), before)
            self._ask(lambda: self._store.set("commlib/world", name))
        self._ask(lambda: self._store.set(claim_key(name, 0), self._claim.encode()))
        return name

    def _join_world(self, timeout_s: float) -> str:
        """Return the world that rank 0 named last, once it is one that this rank was never in."""
        mine = self._claim.encode()
        with Waiting(self.rank, self.size, timeout_s) as waiting:
            while True:
                if world := self._current():
                    put_down = partial(self._store.compare_set, claim_key(world, self.rank), "", mine.decode())
                    holder = self._ask(put_down)
                    if holder == mine:
                        return world
                    self._refuse_second(holder, world)
                if time.monotonic() >= self._deadline:
                    raise CommTimeout(f"rank {self.rank} waited {timeout_s:g} s for rank 0 to join ({self.name})")
                waiting.pause("rank 0")

    def _current(self) -> str:
        return str(self._ask(lambda: self._store.compare_set("commlib/world", "", "")).decode())

    def _check_size(self) -> None:
        first = self._ask(lambda: self._store.compare_set(self._at("size"), "", str(self.size))).decode()
        if first != str(self.size):
            numbers = f"rank {self.rank} expects {self.size}, another rank {first}"
            why = f"ranks disagree on their number: {numbers} ({self._where}); start all of them with the same"
            self._refuse(ValueError(why))

    def _refuse_second(self, holder: bytes, world: str) -> None:
        """Raise on all ranks if another process of this host that lives is this rank of a world."""
        other = ProcessInfo.read(holder)
        if self._claim.meets(other):
            self._world = world
            self._refuse(ValueError(two_processes(self.rank, other.pid, self._claim.pid, self._where)))

    def _refuse(self, error: Exception) -> NoReturn:
        """Raise an error on all ranks, which come together only now."""
        self._ask(lambda: refuse(self._store, self._world, error))
        if self._serves:
            time.sleep(2 * CHECK_S)  # for the others to read it
        raise error

    def _signature(self, rank: int, data: bytes) -> bytes:
        return hmac.digest(self._key, f"{self._world} {self._round} {rank} ".encode() + data, HASH)

    def _checked(self, rank: int, signed: bytes) -> bytes:
        signature, data = signed[:SIGNATURE_BYTES], signed[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(rank, data)):
            raise ValueError(
                f"rank {self.rank}: what came from rank {rank} is not signed with this rank's {env.SECRET.name}; start "
                f"all ranks with the same; if they were, somebody else writes to the store behind {self.name}"
            )
        return data

    def _wait(self, keys: list[str], timeout_s: float, waiting: Waiting) -> None:
        next_check = 0.0
        while not self._there(*keys):
            now = time.monotonic()
            if now >= next_check:
                self._raise_if_lost(keys)
                next_check = now + CHECK_S
            late = now >= self._deadline
            if late or waiting.due():
                missing = [rank for rank in range(self.size) if not self._there(keys[rank])]
                if missing and late:
                    error = CommTimeout(
                        f"rank {self.rank} waited {timeout_s:g} s in init() for {ranks_text(missing)} ({self.name}, "
                        f"exchange {self._round}); raise timeout_s if starting takes longer"
                    )
                    if self._round == 1:
                        self._refuse(error)
                    raise error
                if missing:
                    waiting.tell(ranks_text(missing))
            # Polls, not Store.wait: a wait in C++ answers Ctrl-C and a dead peer only at its deadline.
            waiting.sleep()

    def _raise_if_lost(self, keys: list[str]) -> None:
        self._raise_if_refused()
        if self._round == 1:
            self._raise_if_moved()
        gone = [rank for rank in range(self.size) if self._there(self._at(f"left/{rank}"))]
        left = [rank for rank in gone if not self._there(keys[rank])]
        died = [rank for rank in range(self.size) if rank not in gone and self._has_died(rank)]
        # Who was absent may have come, and the others have gone on, while we looked.
        if (died or left) and not self._there(*keys):
            what = f"{ranks_text(died)} died" if died else f"{ranks_text(left)} closed its communicator"
            raise PeerLost(f"rank {self.rank}: {what} before exchange {self._round} ({self.name})")

    def _raise_if_refused(self) -> None:
        key = self._at("refused")
        if self._there(key):
            kind, text = json.loads(self._ask(lambda: self._store.get(key)))
            raise KINDS.get(kind, ValueError)(text)

    def _raise_if_moved(self) -> None:
        """While the ranks come together, rank 0 may turn out to be another one."""
        if (current := self._current()) in ("", self._world):
            return
        if self.rank == 0:
            why = f"two processes are rank 0 at one store ({self.name}); give each job another address"
            self._refuse(ValueError(why))
        raise _Moved(current)

    def _has_died(self, rank: int) -> bool:
        """Whether a rank that was there was a process of this host, which has ended since."""
        key = claim_key(self._world, rank)
        if not self.infos and not self._there(key):
            return False
        info = self.infos[rank] if self.infos else ProcessInfo.read(self._ask(lambda: self._store.get(key)))
        return info.place == self._claim.place and not info.is_running()

    def _leave_round(self, keys: list[str]) -> None:
        """Count this rank's last look at the round; the last rank deletes its keys."""
        count = self._at(f"{self._round}/read")
        with contextlib.suppress(CommError):  # the store died; the exchange itself says so
            if self._ask(lambda: self._store.add(count, 1)) == self.size:
                self._delete(*keys, count)

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_S
        while self._serves and self._unread and self._store.check([self._unread]):
            if time.monotonic() > deadline:
                return
            time.sleep(0.001)

    def _at(self, key: str) -> str:
        return f"commlib/{self._world}/{key}"

    def _there(self, *keys: str) -> bool:
        return bool(self._ask(lambda: self._store.check(list(keys))))

    def _delete(self, *keys: str) -> None:
        for key in keys:
            self._ask(partial(self._store.delete_key, key))

    def _ask(self, question: Callable[[], T]) -> T:
        """Ask the store, on a thread that may be left behind: it waits without a deadline, and deaf to Ctrl-C.

        Errors of torch say neither who we are nor what the store's end means.
        """
        try:
            return cast("T", self._worker.submit(question).result(max(self._deadline - time.monotonic(), ANSWER_S)))
        except FutureTimeout:
            why = f"the store behind {self.name} does not answer; is the process that serves it stopped?"
            raise CommTimeout(f"rank {self.rank}: {why}") from None
        except CommError:
            raise
        except RuntimeError as error:
            raise PeerLost(
                f"rank {self.rank}: the store behind {self.name} is gone: its launcher or rank 0 ended "
                f"({first_line(error)})"
            ) from None


def claim_key(world: str, rank: int) -> str:
    return f"commlib/{world}/rank/{rank}"


def refuse(store: Any, world: str, error: Exception) -> None:
    """Have the ranks of a world that come together raise an error."""
    store.set(f"commlib/{world}/refused", json.dumps([type(error).__name__, str(error)]))


def address_of(rank: int, store: Any) -> str:
    """Return an address at which other hosts reach a rank, as far as its store tells: rank 0 is where the store is."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    server = str(getattr(store, "host", ""))  # "" for a store without a server
    try:
        return source_address(server) if server and rank else server
    except OSError:
        return ""


def source_address(peer: str) -> str:
    """Return the address of this host from which packets to `peer` go; none is sent."""
    family, _, _, _, where = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])
