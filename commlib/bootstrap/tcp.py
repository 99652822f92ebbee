"""Ranks that know one address meet at a unix socket if it is loopback, else at a TCP store, which rank 0 serves."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import os
import socket
import time
from concurrent.futures import TimeoutError as FutureTimeout  # before Python 3.11 not the builtin
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from commlib import env
from commlib.bootstrap.local_world import Place, meet
from commlib.bootstrap.store import ANSWER_S, StoreWorld
from commlib.bootstrap.world import Identity, World
from commlib.debug.starting import Waiting
from commlib.errors import CommError, CommTimeout, first_line
from commlib.worker import Worker

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]  # public, but not declared so

MAX_PAUSE_S = 0.05  # between two looks for the server
MAX_ANSWER_S = 60.0  # the longest time that a store has to answer


def rendezvous(
    name: str, address: tuple[str, int], who: Identity, timeout_s: float, *, together: bool = False
) -> World:
    """Join the other ranks; `together` says that all are on this host, as a loopback address does."""
    host, port = address
    if not together and not is_loopback(host):
        return connect_store(name, address, who, timeout_s)
    # Ranks may know this host by different names. Jobs of torchrun that have one port have different ids.
    run = os.environ.get("TORCHELASTIC_RUN_ID", "") if name == "torchrun" else ""
    job = env.JOB.get() if name == "commlib run" else ""
    return meet(name, Place(f"{port} {run} {job}", f"{host}:{port}", of_one_job=bool(job)), who, timeout_s)


def is_loopback(host: str) -> bool:
    """Whether an address means this host on every host: then all who use it are on one."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def connect_store(
    name: str, address: tuple[str, int], who: Identity, timeout_s: float, *, secret: str = ""
) -> StoreWorld:
    """Make the world of ranks that know one address, where rank 0 (or torchrun's agent) serves the store.

    Ranks of one world may have a `secret`: they meet no others, and sign what they exchange with it.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # takes seconds, which nobody waits for

    # torchrun's agent serves the store itself and says so; a store of rank 0 would take its port.
    serves = who.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    deadline = time.monotonic() + timeout_s
    if not serves:
        with Waiting(who.rank, who.size, timeout_s) as waiting:
            _wait_for_server(address, who, timeout_s, waiting)
    where = f"rank {who.rank}: no store at {address[0]}:{address[1]}"
    try:
        connecting = Worker("store").submit(partial(_store, address, serves, timeout_s))
        store = connecting.result(max(deadline - time.monotonic(), ANSWER_S))
    except FutureTimeout:
        raise CommTimeout(
            f"{where}: what listens there does not answer within {timeout_s:g} s; another program may hold that port"
        ) from None
    except (RuntimeError, OSError) as error:
        raise CommError(f"{where} ({first_line(error)}); give all ranks a free port of rank 0's host") from None
    store = PrefixStore(hashlib.sha256(secret.encode()).hexdigest()[:16], store)
    left_s = max(deadline - time.monotonic(), 0.1)
    return StoreWorld(name, store, who, left_s, serves=serves, secret=secret)


# One connection for the life of the process: a server that went with the first communicator would cut off peers that
# are already at the next one, or at torch.distributed.init_process_group, which shares it (multi_tenant).
_STORES: dict[tuple[tuple[str, int], bool], Store] = {}


def _store(address: tuple[str, int], serves: bool, timeout_s: float) -> Store:
    if (address, serves) not in _STORES:
        # wait_for_workers=False: the first exchange waits instead, and names who is missing.
        options: dict[str, Any] = {
            "timeout": timedelta(seconds=min(max(timeout_s, 1), MAX_ANSWER_S)),
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
    store = served((host, 0), wait_for_workers=False, timeout=timedelta(seconds=MAX_ANSWER_S))
    _STORES[(host, store.port), True] = store
    return host, store.port


def host_address(together: bool) -> str:
    name = socket.gethostname()
    try:
        return "127.0.0.1" if together else socket.gethostbyname(name)
    except OSError as error:
        raise CommError(f"the name of this host, {name}, has no address ({error}); add it to /etc/hosts") from None


def served(address: tuple[str, int], **options: Any) -> TCPStore:
    """Serve a store at an address, and only there if it is one of this host; what a name means may differ by host."""
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


def _wait_for_server(address: tuple[str, int], who: Identity, timeout_s: float, waiting: Waiting) -> None:
    """Connect until the server is there: retries of torch print a stack trace each, and ignore Ctrl-C."""
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
        waiting.pause(f"rank 0's store at {address[0]}:{address[1]}", MAX_PAUSE_S)
