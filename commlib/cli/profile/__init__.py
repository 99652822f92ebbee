"""`commlib profile`: one module for each kernel that is profiled; KERNELS is the table of contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from commlib.cli.profile.case import Kernel


class Listed(NamedTuple):
    """What the command line knows of a kernel before its module, and torch with it, is loaded."""

    help: str
    variants: tuple[str, ...] = ()  # options beside the plain call: --masked
    patterns: tuple[str, ...] = ("sequential", "random", "zipf")  # of its ids; one is no option


KERNELS: dict[str, Listed] = {
    "index": Listed("Row gather: n rows of a table, of which masked has a quarter.", ("masked",)),
    "metadata": Listed("What attention must know of n requests.", (), ("random",)),
    "store": Listed("K and V of n tokens into their slots; fp8 quantises on the way.", ("fp8",)),
}


def load(name: str) -> Kernel:
    """Return the kernel of that name: the KERNEL of its module."""
    from importlib import import_module

    kernel: Kernel = import_module(f"commlib.cli.profile.{name}").KERNEL
    return kernel


__all__ = ["KERNELS", "Listed", "load"]
