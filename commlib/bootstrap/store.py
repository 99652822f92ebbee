"""StoreWorld: the exchange over a torch store, for ranks of several hosts and for existing torch groups."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout  # before Python 3.11 not the builtin
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from commlib import env
from commlib.bootstrap.world import Identity, ProcessInfo, ProcessWatch, World, process_info, two_processes
from commlib.counts import ranks_text
from commlib.debug.starting import Waiting
from commlib.errors import CommError, CommTimeout, PeerLost, first_line
from commlib.worker import Worker

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # public, but not declared so

T = TypeVar("T")

DRAIN_S = 5.0  # how long the rank that serves the store waits at close for the others to have read
ANSWER_S = 1.0  # the shortest time that a store has to answer
MAX_PAUSE_S = 0.02
TOKEN_BYTES = 32  # random, before what a rank puts down: so nobody ever put down the same
HASH, SIGNATURE_BYTES = "sha256", 32
CHECK_S = 0.2  # between two checks for ranks that died or left


class _Moved(Exception):
    """Rank 0 has named another world."""


class StoreWorld(World):
    """Each rank puts its bytes under a key of this round and reads the others'; the last reader cleans up.

    Rank 0 names the world, and every rank puts itself down for it. A store may hold worlds of before, also of ranks
    that were killed: a rank that waits in one of those follows when rank 0 names another.
    """

    def __init__(
        self, name: str, store: Store, who: Identity, timeout_s: float, *, serves: bool = False, secret: str = ""
    ) -> None:
        """`serves`: the store is in this process. `secret`: what only the ranks know, besides COMMLIB_SECRET."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        self.name, self.rank, self.size = name, who.rank, who.size
        self.address = address_of(who.rank, store)
        self._worker, self._deadline = Worker("store"), time.monotonic() + timeout_s
        self._base = PrefixStore("commlib", store)
        self._serves = serves
        self._unread = ""  # a key of the last round, there until every rank has read it
        self._watch: ProcessWatch | None = None
        self._info, deadline = process_info(), self._deadline
        mine = secrets.token_hex(TOKEN_BYTES // 2).encode() + self._info.encode()
        everyone = None
        while everyone is None:
            self._deadline, self._round = deadline, 0
            with Waiting(self.rank, self.size, timeout_s) as waiting:
                self._world = self._name_world() if self.rank == 0 else self._join_world(mine, timeout_s, waiting)
            self._store = PrefixStore(self._world, self._base)
            self._key = (env.SECRET.get() + secret).encode()
            self._put_down(mine)
            with contextlib.suppress(_Moved):
                everyone = self.all_gather(mine, round(max(deadline - time.monotonic(), 0.1), 1))
        self._key = hmac.digest(self._key, b"".join(everyone), HASH)  # of this world only
        self.infos = [ProcessInfo.read(text[TOKEN_BYTES:]) for text in everyone]
        self._watch = ProcessWatch(self.rank, self.infos)
        self.local_rank = self.count_local_rank() if who.local_rank is None else who.local_rank

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        self._round += 1
        self._deadline = time.monotonic() + timeout_s
        keys = [f"{self._round}/{rank}" for rank in range(self.size)]
        self._ask(lambda: self._store.set(keys[self.rank], self._signature(self.rank, data) + data))  # type: ignore[arg-type]  # takes bytes too
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
        if self._watch is None:
            return
        self._watch.close()
        self._watch = None
        self._deadline = time.monotonic() + DRAIN_S
        with contextlib.suppress(CommError):  # the store died before us: nobody is left to tell
            self._ask(self._drain)
            self._ask(partial(self._store.set, f"left/{self.rank}", ""))
            if self.rank == 0:
                self._ask(lambda: self._base.compare_set("world", self._world, ""))
            if self._ask(lambda: self._store.add("left", 1)) == self.size:
                self._delete(
                    "size", "left", *(f"{kind}/{rank}" for kind in ("left", "rank") for rank in range(self.size))
                )
        self._worker.close(CommError(f"rank {self.rank}: this world is closed"))

    def _name_world(self) -> str:
        name = secrets.token_hex(8)
        before = self._ask(lambda: self._base.compare_set("world", "", name)).decode()
        if before != name:  # rank 0 of before has another communicator open, or was killed, or is one of another job
            key = f"{before}/rank/0"
            if self._ask(lambda: self._base.check([key])):
                self._refuse_second(0, self._ask(lambda: self._base.get(key)), before)
            self._ask(lambda: self._base.set("world", name))
        return name

    def _join_world(self, mine: bytes, timeout_s: float, waiting: Waiting) -> str:
        """Return the world that rank 0 named last, once it is one that this rank was never in."""
        pause_s = 0.0005
        while True:
            world = self._current()
            if world:
                put_down = partial(self._base.compare_set, f"{world}/rank/{self.rank}", "", mine.decode())
                holder = self._ask(put_down)
                if holder == mine:
                    return world
                self._refuse_second(self.rank, holder, world)
            if time.monotonic() >= self._deadline:
                raise CommTimeout(f"rank {self.rank} waited {timeout_s:g} s for rank 0 to join ({self.name})")
            if waiting.due():
                waiting.tell("rank 0")
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    def _current(self) -> str:
        return self._ask(lambda: self._base.compare_set("world", "", "")).decode()

    def _put_down(self, mine: bytes) -> None:
        if self.rank == 0:
            self._ask(lambda: self._store.set("rank/0", mine))  # type: ignore[arg-type]  # takes bytes too
        first = self._ask(lambda: self._store.compare_set("size", "", str(self.size))).decode()
        if first != str(self.size):
            numbers = f"rank {self.rank} expects {self.size}, another rank {first}"
            self._refuse(f"ranks disagree on their number: {numbers} ({self.name}); start all of them with the same")

    def _refuse_second(self, rank: int, holder: bytes, world: str) -> None:
        """Raise on all ranks if another process of this host that lives is this rank of a world."""
        info = ProcessInfo.read(holder[TOKEN_BYTES:])
        if info.place == self._info.place and info.pid != self._info.pid and info.is_running():
            self._store = type(self._base)(world, self._base)
            self._refuse(two_processes(rank, info.pid, self._info.pid, self.name))

    def _refuse(self, why: str) -> NoReturn:
        self._ask(partial(self._store.set, "refused", why))
        if self._serves:
            time.sleep(2 * CHECK_S)  # for the others to read it
        raise ValueError(why)

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
        next_check, pause_s = 0.0, 0.0005
        while not self._there(*keys):
            now = time.monotonic()
            if now >= next_check:
                self._raise_if_lost(keys)
                self._raise_if_moved()
                next_check = now + CHECK_S
            late = now >= self._deadline
            if late or waiting.due():
                missing = [rank for rank in range(self.size) if not self._there(keys[rank])]
                if missing and late:
                    raise self.late(timeout_s, self._round, ranks_text(missing))
                if missing:
                    waiting.tell(ranks_text(missing))
            # Polls, not Store.wait: a wait in C++ answers Ctrl-C and a dead peer only at its deadline.
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    def _raise_if_lost(self, keys: list[str]) -> None:
        if self._there("refused"):
            raise ValueError(self._ask(lambda: self._store.get("refused")).decode())
        absent = [rank for rank in range(self.size) if not self._there(keys[rank])]
        dead = self._watch.dead(absent) if self._watch else []
        gone = [rank for rank in absent if self._there(f"left/{rank}")]  # and its process may have ended since
        # Who was absent may have come, and then left, while we looked.
        missing = [rank for rank in {*dead, *gone} if not self._there(keys[rank])]
        left = [rank for rank in missing if rank in gone]
        died = [rank for rank in missing if rank not in gone]
        if died or left:
            what = f"{ranks_text(died)} died" if died else f"{ranks_text(left)} closed its communicator"
            raise PeerLost(f"rank {self.rank}: {what} before exchange {self._round} ({self.name})")

    def _raise_if_moved(self) -> None:
        """While the ranks come together, rank 0 may turn out to be another one."""
        if self._round > 1 or (current := self._current()) in ("", self._world):
            return
        if self.rank == 0:
            self._refuse(f"two processes are rank 0 at one store ({self.name}); give each job another address")
        raise _Moved(current)

    def _leave_round(self, keys: list[str]) -> None:
        """Count this rank's last look at the round; the last rank deletes its keys."""
        count = f"{self._round}/read"
        with contextlib.suppress(CommError):  # the store died; the exchange itself says so
            if self._ask(lambda: self._store.add(count, 1)) == self.size:
                self._delete(*keys, count)

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_S
        while self._serves and self._unread and self._store.check([self._unread]):
            if time.monotonic() > deadline:
                return
            time.sleep(0.001)

    def _there(self, *keys: str) -> bool:
        return self._ask(lambda: self._store.check(list(keys)))

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
