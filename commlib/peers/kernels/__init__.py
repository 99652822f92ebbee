"""What `commlib profile` measures: kernels beside who makes the same call. KERNELS is the table of contents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commlib.peers.kernels.case import Kernel


@dataclass(frozen=True)
class Listed:
    """What is said of a kernel before its module, and torch with it, is loaded."""

    help: str
    variants: Mapping[str, str] = field(default_factory=dict)  # options beside the plain call: --masked
    patterns: tuple[str, ...] = ("sequential", "random", "zipf")  # of its ids; one is no option


KERNELS: dict[str, Listed] = {
    "index": Listed(
        "Row gather: n rows of a table, of which masked has a quarter.",
        {"masked": "Ids of a whole vocabulary, a quarter of them in the shard here."},
    ),
    "metadata": Listed("What attention must know of n requests.", patterns=("random",)),
    "store": Listed(
        "K and V of n tokens into their slots; fp8 quantises on the way.",
        {"fp8": "Caches of float8_e4m3fn, with scales."},
    ),
}


def load(name: str) -> Kernel:
    """Return the kernel of that name: the KERNEL of its module."""
    kernel: Kernel = import_module(f"commlib.peers.kernels.{name}").KERNEL
    return kernel


__all__ = ["KERNELS", "Listed", "load"]
