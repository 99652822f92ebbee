"""Ranks whose program says who they are: commlib.init(rank=, size=, address=), as workers of Ray or Dask know it."""

from __future__ import annotations

import operator
from typing import NamedTuple, SupportsIndex

from commlib.bootstrap.launcher import Identity
from commlib.bootstrap.tcp import rendezvous
from commlib.bootstrap.world import World


class ExplicitRank(NamedTuple):
    """The arguments of init(), checked."""

    rank: int
    size: int
    host: str
    port: int

    def connect(self, timeout_s: float) -> World:
        """Join the ranks that have the same address, where rank 0 serves."""
        who = Identity(self.rank, self.size)
        return rendezvous("address", (self.host, self.port), who, timeout_s)


def explicit_rank(bootstrap: object, rank: int | None, size: int | None, address: str | None) -> object:
    """Return what `connect` takes: the bootstrap, or in its place rank, size and address, if they are passed."""
    values = {"rank": rank, "size": size, "address": address}
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(values):
        return bootstrap
    if missing:
        present = ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
        raise ValueError(f"init got {present}, but not {', '.join(missing)}; pass rank, size and address, or none")
    if bootstrap != "auto":
        raise ValueError("init got rank, size and address, and a bootstrap; pass one or the other")
    for name in ("rank", "size"):
        if not isinstance(values[name], SupportsIndex):
            raise TypeError(f"{name} is of type {type(values[name]).__name__}, but must be an int")
    total, number = operator.index(values["size"]), operator.index(values["rank"])  # type: ignore[arg-type]  # checked
    if total < 1 or not 0 <= number < total:
        raise ValueError(f"rank is {number} and size {total}, but size must be 1 or more, and rank from 0 to size - 1")
    return ExplicitRank(number, total, *_address(address))


def _address(address: object) -> tuple[str, int]:
    if not isinstance(address, str):
        raise TypeError(f"address is of type {type(address).__name__}, but must be a str: 'host:port'")
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or "/" in host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(
            f"address is {address!r}, but must be 'host:port' or 'tcp://host:port' with a port from 1 to 65535"
        )
    return host, int(port)
