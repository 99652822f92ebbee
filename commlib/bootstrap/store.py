"""StoreWorld: the exchange over a torch store, shared by torchrun, slurm and existing torch groups."""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from commlib.bootstrap.launcher import Place
from commlib.bootstrap.neighbours import Neighbours, card
from commlib.bootstrap.world import World
from commlib.errors import CommError, CommTimeout, PeerLost

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # public, but not declared so

T = TypeVar("T")

DRAIN_S = 5.0  # how long the rank that serves the store waits at close for the others to have read
LONGEST_NAP_S = 0.02
LOOK_AROUND_S = 0.2  # between two looks for ranks that died or left


class StoreWorld(World):
    """Each rank puts its bytes under a key of this round and reads the others'; the last reader cleans up."""

    def __init__(self, name: str, store: Store, place: Place, timeout_s: float, serves: bool = False) -> None:
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        self.name, self.rank, self.size = name, place.rank, place.size
        # Counted in the store, not here: the n-th world of every rank is one world, whatever else ran before.
        base = PrefixStore("commlib", store)
        generation = self._ask(lambda: base.add(f"worlds/{self.rank}", 1))
        self._store = PrefixStore(f"world{generation}", base)
        self._serves = serves
        self._round = 0
        self._unread = ""  # a key of the last round, there until every rank has read it
        self._neighbours: Neighbours | None = None
        cards = self.all_gather(card(), timeout_s)
        self._neighbours = Neighbours(self.rank, cards)
        self.local_rank = self._neighbours.local_rank if place.local_rank is None else place.local_rank

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Return every rank's bytes in rank order."""
        self._round += 1
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
        try:
            self._drain()
            self._store.set(f"left/{self.rank}", "")
            if self._store.add("left", 1) == self.size:
                for key in ("left", *(f"left/{rank}" for rank in range(self.size))):
                    self._store.delete_key(key)
        except RuntimeError:
            pass  # the store died before us: nobody is left to tell

    def _wait(self, keys: list[str], timeout_s: float) -> None:
        deadline, look_around, nap_s = time.monotonic() + timeout_s, 0.0, 0.0005
        while not self._ask(lambda: self._store.check(keys)):
            now = time.monotonic()
            if now >= look_around:
                self._raise_if_lost(keys)
                look_around = now + LOOK_AROUND_S
            if now >= deadline:
                missing = [rank for rank in range(self.size) if not self._store.check([keys[rank]])]
                if missing:
                    raise CommTimeout(
                        f"rank {self.rank} waited {timeout_s:g} s in exchange {self._round} ({self.name}) "
                        f"for {named(missing)}; raise timeout_s if they are only late"
                    )
            # Polls, not Store.wait: a wait in C++ answers Ctrl-C and a dead peer only at its deadline.
            time.sleep(nap_s)
            nap_s = min(nap_s * 2, LONGEST_NAP_S)

    def _raise_if_lost(self, keys: list[str]) -> None:
        missing = [rank for rank in range(self.size) if not self._store.check([keys[rank]])]
        dead = self._neighbours.dead(missing) if self._neighbours else []
        left = [rank for rank in missing if self._store.check([f"left/{rank}"])]
        if dead or left:
            what = f"{named(dead)} died" if dead else f"{named(left)} closed its communicator"
            raise PeerLost(f"rank {self.rank}: {what} before exchange {self._round} ({self.name})")

    def _leave_round(self, keys: list[str]) -> None:
        """Count this rank's last look at the round; whoever is last deletes its keys."""
        try:
            if self._store.add(f"{self._round}/read", 1) == self.size:
                for key in (*keys, f"{self._round}/read"):
                    self._store.delete_key(key)
        except RuntimeError:
            pass  # the store died; the exchange itself says so

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_S
        while self._serves and self._unread and self._store.check([self._unread]):
            if time.monotonic() > deadline:
                return
            time.sleep(0.001)

    def _ask(self, question: Callable[[], T]) -> T:
        """Ask the store, whose own error says neither who we are nor what its end means."""
        try:
            return question()
        except RuntimeError as error:
            raise PeerLost(
                f"rank {self.rank}: the store behind {self.name} is gone: its launcher or rank 0 ended "
                f"({_first_line(error)})"
            ) from None


def connect_store(name: str, address: tuple[str, int], place: Place, timeout_s: float) -> StoreWorld:
    """Make the world of ranks that know one address, where rank 0 (or torchrun's agent) serves the store."""
    # torchrun's agent serves the store itself and says so; a store of rank 0 would take its port.
    serves = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    deadline = time.monotonic() + timeout_s
    if not serves:
        _wait_for_server(address, place, timeout_s)
    try:
        store = _store(address, serves)
    except RuntimeError as error:
        raise CommError(
            f"rank {place.rank}: no store at {address[0]}:{address[1]} ({_first_line(error)}); "
            f"set MASTER_ADDR and MASTER_PORT to a free port of rank 0's host"
        ) from None
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    # The agent's store may outlive a failed attempt; what its ranks left there must not count in this one.
    store = PrefixStore(f"attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    return StoreWorld(name, store, place, max(deadline - time.monotonic(), 0.1), serves)


@functools.cache
def _store(address: tuple[str, int], serves: bool) -> Store:
    """Keep one connection for the life of the process.

    A server that went with the first communicator would cut off peers that are already at the next one, or
    at torch.distributed.init_process_group, which shares it (multi_tenant).
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # wait_for_workers=False: the first exchange waits instead, and names who is missing.
    return TCPStore(*address, None, serves, timedelta(seconds=60), wait_for_workers=False, multi_tenant=serves)


def _wait_for_server(address: tuple[str, int], place: Place, timeout_s: float) -> None:
    """Knock until the server is there: torch's own retries print a stack trace each, and ignore Ctrl-C."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(address, timeout=max(deadline - time.monotonic(), 0.1)).close()
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise CommTimeout(
                    f"rank {place.rank} waited {timeout_s:g} s for rank 0's store at "
                    f"{address[0]}:{address[1]} ({error}); is rank 0 running, and is this its host?"
                ) from None
        time.sleep(0.05)


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].rstrip(".")


def named(ranks: list[int]) -> str:
    """Write 'rank 1' or 'ranks 1, 2'."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
