"""How ranks that know one address come together: at a unix socket if it is loopback, else over a TCP store."""

from __future__ import annotations

import ipaddress
import os

from commlib.bootstrap.launcher import Identity
from commlib.bootstrap.local_world import meet
from commlib.bootstrap.tcp import connect_store
from commlib.bootstrap.unix_rendezvous import Place
from commlib.bootstrap.world import World


def rendezvous(
    name: str, address: tuple[str, int], who: Identity, timeout_s: float, *, together: bool = False
) -> World:
    """Join the other ranks; `together` says that all are on this host, as a loopback address does."""
    host, port = address
    if not together and not is_loopback(host):
        return connect_store(name, address, who, timeout_s)
    # Ranks may know this host by different names. Jobs of torchrun that have one port have different ids.
    run = os.environ.get("TORCHELASTIC_RUN_ID", "") if name == "torchrun" else ""
    return meet(name, Place(f"{port} {run}", f"{host}:{port}"), who, timeout_s)


def is_loopback(host: str) -> bool:
    """Whether an address means this host on every host: then all who use it are on one."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
