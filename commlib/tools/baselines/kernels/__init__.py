"""What `commlib bench` measures besides collectives: kernels, and whose calls they are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

Numbers = tuple[int, ...]
FLOATS = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Kernel:
    """A row of the table: what its command needs before torch is loaded; --sweep has its own sizes."""

    case: str  # module:class
    help: str
    dims: Numbers = ()
    rows: Numbers = ()
    sweep_dims: Numbers = ()
    sweep_rows: Numbers = ()
    dtypes: tuple[str, ...] = FLOATS
    variants: Mapping[str, str] = field(default_factory=dict)  # options that change the call, such as --masked
    patterns: tuple[str, ...] = ("sequential", "random", "zipf")  # of its ids; one is no option


KERNELS = {
    "index": Kernel(
        "index:Index",
        "Row gather: n rows of a table; --masked: of a quarter of the vocabulary.",
        dims=(4096, 8192),
        rows=(1, 64, 1024, 16384),
        sweep_dims=(4096, 7168, 8192),
        sweep_rows=(1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384),
        variants={"masked": "Ids of a whole vocabulary, a quarter of them in the shard here."},
    ),
    "metadata": Kernel(
        "metadata:Metadata",
        "Lengths and positions of n requests, as attention needs them.",
        dims=(8,),
        rows=(1, 16, 64, 512),
        sweep_dims=(8,),
        sweep_rows=(1, 4, 16, 64, 128, 512),
        dtypes=("int32",),
        patterns=("random",),
    ),
    "store": Kernel(
        "store:Store",
        "K and V of n tokens into their slots; --fp8 quantises on the way.",
        dims=(128, 1024),
        rows=(1, 64, 512, 4096, 32768),
        sweep_dims=(128, 256, 512, 1024),
        sweep_rows=(1, 16, 64, 256, 512, 1024, 4096, 16384, 32768),
        variants={"fp8": "Caches of float8_e4m3fn, with scales."},
    ),
    "attention": Kernel("attention:Attention", "Attention over a paged cache, or of whole prompts, next to a ceiling."),
    "radix": Kernel("radix:Radix", "RadixCache and prefix_match from Python on the CPU."),
}
# Other libraries, in the order in which they are listed; torch also has torch.compile.
BASELINES = {
    "torch": "torch:Torch",
    "python": "python:Python",
    "triton": "triton:Triton",
    "flash-attn": "flash_attn:FlashAttn",
    "flashinfer": "flashinfer:FlashInfer",
}


def load(place: str) -> Any:
    """Return the class at a place such as index:Index; only then torch is loaded."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"{__name__}.{module}"), name)
