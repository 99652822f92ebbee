"""The peers: other libraries that `commlib bench` measures beside ours. PEERS is the table of contents."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commlib.tools.baselines.peer import Peer

# The module of a peer is loaded when it is asked for.
PEERS: dict[str, str] = {
    "torch": "torch.distributed",
    "mpi": "MPI through mpi4py",
    "nccl": "NCCL's bare calls, on GPUs",
    "symm": "torch's symmetric memory, on GPUs",
}
AUTO = {"cpu": ("mpi", "torch"), "cuda": ("nccl",)}  # by the device of ours, whoever is compared with first first
PROBE = "probe"  # labels that begin so are no rivals: nobody is compared with them
_MAKERS = ("CallTable", "Peer")


def load(name: str) -> Peer:
    peer: Peer = import_module(f"commlib.tools.baselines.{name}").make()
    return peer


def __getattr__(name: str) -> Any:
    """Load what a peer is made from when it is asked for: the table needs no torch."""
    if name in _MAKERS:
        return getattr(import_module("commlib.tools.baselines.peer"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["AUTO", "PEERS", "PROBE", "CallTable", "Peer", "load"]
