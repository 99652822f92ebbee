"""Addresses of this host: which of them the ranks of other hosts reach."""

from __future__ import annotations

import socket
from typing import Any


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
