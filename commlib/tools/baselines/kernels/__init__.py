"""What `commlib profile` measures: kernels beside who makes the same call. KERNELS is the table of contents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commlib.tools.baselines.kernels.case import Kernel

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Listed:
    """What is said of a kernel before its module, and torch with it, is loaded; --sweep has sizes of its own."""

    help: str
    dims: Numbers
    rows: Numbers
    sweep_dims: Numbers
    sweep_rows: Numbers
    dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32")
    variants: Mapping[str, str] = field(default_factory=dict)  # options beside the plain call: --masked
    patterns: tuple[str, ...] = ("sequential", "random", "zipf")  # of its ids; one is no option


KERNELS: dict[str, Listed] = {
    "index": Listed(
        "Row gather: n rows of a table, of which masked has a quarter.",
        dims=(4096, 8192),
        rows=(1, 64, 1024, 16384),
        sweep_dims=(4096, 7168, 8192),
        sweep_rows=(1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384),
        variants={"masked": "Ids of a whole vocabulary, a quarter of them in the shard here."},
    ),
    "metadata": Listed(
        "What attention must know of n requests.",
        dims=(8,),
        rows=(1, 16, 64, 512),
        sweep_dims=(8,),
        sweep_rows=(1, 4, 16, 64, 128, 512),
        dtypes=("int32",),
        patterns=("random",),
    ),
    "store": Listed(
        "K and V of n tokens into their slots; fp8 quantises on the way.",
        dims=(128, 1024),
        rows=(1, 64, 512, 4096, 32768),
        sweep_dims=(128, 256, 512, 1024),
        sweep_rows=(1, 16, 64, 256, 512, 1024, 4096, 16384, 32768),
        variants={"fp8": "Caches of float8_e4m3fn, with scales."},
    ),
}


def load(name: str) -> Kernel:
    """Return the module of the kernel of that name, which also the names of its GPU kernels have."""
    kernel: Kernel = import_module(f"commlib.tools.baselines.kernels.{name}")
    return kernel


__all__ = ["KERNELS", "Listed", "load"]
