"""StoreWorld: the exchange over a torch store, shared by torchrun, slurm and existing torch groups."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout  # before Python 3.11 not the builtin
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from commlib.bootstrap.launcher import Identity
from commlib.bootstrap.neighbours import Neighbours, card
from commlib.bootstrap.world import World, named
from commlib.errors import CommError, CommTimeout, PeerLost
from commlib.lane import Lane

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]  # public, but not declared so

T = TypeVar("T")

DRAIN_S = 5.0  # how long the rank that serves the store waits at close for the others to have read
ANSWER_S, LONGEST_ANSWER_S = 1.0, 60.0  # what a store gets to answer, at least and at most
LONGEST_NAP_S = 0.02
LOOK_AROUND_S = 0.2  # between two looks for ranks that died or left


class StoreWorld(World):
    """Each rank puts its bytes under a key of this round and reads the others'; the last reader cleans up."""

    def __init__(self, name: str, store: Store, who: Identity, timeout_s: float, serves: bool = False) -> None:
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        self.name, self.rank, self.size = name, who.rank, who.size
        self._lane, self._deadline = Lane("store"), time.monotonic() + timeout_s
        # Counted in the store, not here: the n-th world of every rank is one world, whatever else ran before.
        base = PrefixStore("commlib", store)
        generation = self._ask(lambda: base.add(f"worlds/{self.rank}", 1))
        self._store = PrefixStore(f"world{generation}", base)
        self._serves = serves
        self._round = 0
        self._unread = ""  # a key of the last round, there until every rank has read it
        self._neighbours: Neighbours | None = None
        self._agree_on_size()
        cards = self.all_gather(card(), timeout_s)
        self._neighbours = Neighbours(self.rank, cards)
        self.local_rank = self._neighbours.local_rank if who.local_rank is None else who.local_rank

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Return every rank's bytes in rank order."""
        self._round += 1
        self._deadline = time.monotonic() + timeout_s
        keys = [f"{self._round}/{rank}" for rank in range(self.size)]
        self._ask(lambda: self._store.set(keys[self.rank], data))  # type: ignore[arg-type]  # takes bytes too
        try:
            self._wait(keys, timeout_s)
            gathered = self._ask(lambda: self._store.multi_get(keys))
        finally:
            self._leave_round(keys)
        self._unread = keys[self.rank]
        return gathered

    def close(self) -> None:
        """Tell the others that no more rounds come from here; the serving rank lets them read first."""
        if self._neighbours is None:
            return
        self._neighbours.close()
        self._neighbours = None
        self._deadline = time.monotonic() + DRAIN_S
        with contextlib.suppress(CommError):  # the store died before us: nobody is left to tell
            self._ask(self._drain)
            self._ask(partial(self._store.set, f"left/{self.rank}", ""))
            if self._ask(lambda: self._store.add("left", 1)) == self.size:
                self._delete("left", *(f"left/{rank}" for rank in range(self.size)))
        self._lane.close(CommError(f"rank {self.rank}: this world is closed"))

    def _agree_on_size(self) -> None:
        first = self._ask(lambda: self._store.compare_set("size", "", str(self.size))).decode()
        if first == str(self.size):
            return
        why = f"ranks disagree on their number: rank {self.rank} was told {self.size}, another rank {first}"
        why = f"{why} ({self.name}); start all of them with the same"
        self._ask(partial(self._store.set, "refused", why))
        if self._serves:
            time.sleep(2 * LOOK_AROUND_S)  # for the others to read it
        raise ValueError(why)

    def _wait(self, keys: list[str], timeout_s: float) -> None:
        look_around, nap_s = 0.0, 0.0005
        while not self._there(*keys):
            now = time.monotonic()
            if now >= look_around:
                self._raise_if_lost(keys)
                look_around = now + LOOK_AROUND_S
            if now >= self._deadline:
                missing = [rank for rank in range(self.size) if not self._there(keys[rank])]
                if missing:
                    raise self.late(timeout_s, self._round, named(missing))
            # Polls, not Store.wait: a wait in C++ answers Ctrl-C and a dead peer only at its deadline.
            time.sleep(nap_s)
            nap_s = min(nap_s * 2, LONGEST_NAP_S)

    def _raise_if_lost(self, keys: list[str]) -> None:
        if self._there("refused"):
            raise ValueError(self._ask(lambda: self._store.get("refused")).decode())
        absent = [rank for rank in range(self.size) if not self._there(keys[rank])]
        dead = self._neighbours.dead(absent) if self._neighbours else []
        gone = [rank for rank in absent if self._there(f"left/{rank}")]  # and its process may have ended since
        # Who was absent may have come, and then left, while we looked.
        missing = [rank for rank in {*dead, *gone} if not self._there(keys[rank])]
        left = [rank for rank in missing if rank in gone]
        died = [rank for rank in missing if rank not in gone]
        if died or left:
            what = f"{named(died)} died" if died else f"{named(left)} closed its communicator"
            raise PeerLost(f"rank {self.rank}: {what} before exchange {self._round} ({self.name})")

    def _leave_round(self, keys: list[str]) -> None:
        """Count this rank's last look at the round; whoever is last deletes its keys."""
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

        Its own errors say neither who we are nor what its end means.
        """
        try:
            return cast("T", self._lane.submit(question).result(max(self._deadline - time.monotonic(), ANSWER_S)))
        except FutureTimeout:
            why = f"the store behind {self.name} does not answer; is the process that serves it stopped?"
            raise CommTimeout(f"rank {self.rank}: {why}") from None
        except CommError:
            raise
        except RuntimeError as error:
            raise PeerLost(
                f"rank {self.rank}: the store behind {self.name} is gone: its launcher or rank 0 ended "
                f"({_first_line(error)})"
            ) from None


def connect_store(
    name: str, address: tuple[str, int], who: Identity, timeout_s: float, *, group: str = ""
) -> StoreWorld:
    """Make the world of ranks that know one address, where rank 0 (or torchrun's agent) serves the store.

    Ranks of one world give the same `group`, those of another another.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # takes seconds, which nobody waits for

    # torchrun's agent serves the store itself and says so; a store of rank 0 would take its port.
    serves = who.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    deadline = time.monotonic() + timeout_s
    if not serves:
        _wait_for_server(address, who, timeout_s)
    where = f"rank {who.rank}: no store at {address[0]}:{address[1]}"
    try:
        connecting = Lane("store").submit(partial(_store, address, serves, timeout_s))
        store = connecting.result(max(deadline - time.monotonic(), ANSWER_S))
    except FutureTimeout:
        raise CommTimeout(
            f"{where}: what listens there does not answer within {timeout_s:g} s; another program may hold that port"
        ) from None
    except (RuntimeError, OSError) as error:
        raise CommError(
            f"{where} ({_first_line(error)}); set MASTER_ADDR and MASTER_PORT to a free port of rank 0's host"
        ) from None
    # The agent's store may outlive a failed attempt; what its ranks left there must not count in this one.
    store = PrefixStore(f"attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}{group}", store)
    return StoreWorld(name, store, who, max(deadline - time.monotonic(), 0.1), serves)


# One connection for the life of the process: a server that went with the first communicator would cut off peers that
# are already at the next one, or at torch.distributed.init_process_group, which shares it (multi_tenant).
_STORES: dict[tuple[tuple[str, int], bool], Store] = {}


def _store(address: tuple[str, int], serves: bool, timeout_s: float) -> Store:
    if (address, serves) not in _STORES:
        # wait_for_workers=False: the first exchange waits instead, and names who is missing.
        options: dict[str, Any] = {
            "timeout": timedelta(seconds=min(max(timeout_s, 1), LONGEST_ANSWER_S)),
            "wait_for_workers": False,
        }
        if serves:
            _STORES[address, serves] = served(address, multi_tenant=True, **options)
        else:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]

            _STORES[address, serves] = TCPStore(*address, None, False, **options)
    return _STORES[address, serves]


@cache
def serve(host: str) -> tuple[str, int]:
    """Serve a store at a port that the system picks, for the life of the process, and return its address."""
    store = served((host, 0), wait_for_workers=False, timeout=timedelta(seconds=LONGEST_ANSWER_S))
    _STORES[(host, store.port), True] = store
    return host, store.port


def own_address(together: bool) -> str:
    """Return the address at which peers reach this host."""
    name = socket.gethostname()
    try:
        return "127.0.0.1" if together else socket.gethostbyname(name)
    except OSError as error:
        raise CommError(f"the name of this host, {name}, has no address ({error}); add it to /etc/hosts") from None


def served(address: tuple[str, int], **options: Any) -> TCPStore:
    """Serve a store at an address, and there alone if it is one of this host; what a name means may differ by host."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = address
    with contextlib.suppress(ValueError):
        literal = "127.0.0.1" if host == "localhost" else host
        family = socket.AF_INET6 if ipaddress.ip_address(literal).version == 6 else socket.AF_INET
        try:
            listener = socket.create_server((literal, port), family=family)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # it is forwarded to this host: listen everywhere, as torch does
                raise
        else:
            port = listener.getsockname()[1]
            return TCPStore(literal, port, None, True, master_listen_fd=listener.detach(), **options)
    return TCPStore(host, port, None, True, **options)


def _wait_for_server(address: tuple[str, int], who: Identity, timeout_s: float) -> None:
    """Knock until the server is there: torch's own retries print a stack trace each, and ignore Ctrl-C."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(address, timeout=max(deadline - time.monotonic(), 0.1)).close()
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise CommTimeout(
                    f"rank {who.rank} waited {timeout_s:g} s for rank 0's store at "
                    f"{address[0]}:{address[1]} ({error}); is rank 0 running, and is this its host?"
                ) from None
        time.sleep(0.05)


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].rstrip(".")
