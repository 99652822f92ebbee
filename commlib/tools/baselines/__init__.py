"""The baselines: other libraries that `commlib bench` measures next to ours. PEERS is the table of contents."""

from __future__ import annotations

from importlib import import_module
from typing import Any

PEERS = ("torch", "mpi", "nccl", "symm")  # the module of each is loaded when it is asked for
AUTO = {"cpu": ("mpi", "torch"), "cuda": ("nccl",)}  # by the device of ours, whoever is compared with first first
PROBE = "probe"  # labels that begin so are no rivals: nobody is compared with them


def load(name: str) -> Any:
    """Make the Peer of that name; nothing is started yet."""
    return import_module(f"commlib.tools.baselines.{name}").make()
