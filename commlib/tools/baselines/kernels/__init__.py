"""What `commlib bench` measures besides collectives: kernels; each has a module, with the libraries it is next to."""

from __future__ import annotations

from dataclasses import dataclass

Numbers = tuple[int, ...]
PATTERNS = ("sequential", "random")  # of ids and slots


@dataclass(frozen=True)
class Kernel:
    """A row of the table: what its command needs before torch is loaded; --sweep has its own sizes."""

    help: str
    case: str = ""  # class of its module, of a kernel of rows
    dims: Numbers = ()
    rows: Numbers = ()
    sweep_dims: Numbers = ()
    sweep_rows: Numbers = ()
    dtype: str = "bfloat16"
    variant: tuple[str, str] = ("", "")  # an option that changes the call, and its help
    patterns: bool = True  # it takes ids in an order


KERNELS = {
    "index": Kernel(
        "Row gather: n rows of a table; --masked: of a quarter of the vocabulary.",
        "Index",
        dims=(4096, 8192),
        rows=(1, 64, 1024, 16384),
        sweep_dims=(4096, 7168, 8192),
        sweep_rows=(1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384),
        variant=("masked", "Ids of a whole vocabulary, a quarter of them in the shard here."),
    ),
    "metadata": Kernel(
        "Lengths and positions of n requests, as attention needs them.",
        "Metadata",
        dims=(8,),
        rows=(1, 16, 64, 512),
        sweep_dims=(8,),
        sweep_rows=(1, 4, 16, 64, 128, 512),
        dtype="int32",
        patterns=False,
    ),
    "store": Kernel(
        "K and V of n tokens into their slots; --fp8 quantises on the way.",
        "Store",
        dims=(128, 1024),
        rows=(1, 64, 512, 4096, 32768),
        sweep_dims=(128, 256, 512, 1024),
        sweep_rows=(1, 16, 64, 256, 512, 1024, 4096, 16384, 32768),
        variant=("fp8", "Caches of float8_e4m3fn, with scales."),
    ),
    "attention": Kernel("Attention of single queries over a paged cache, next to a ceiling."),
    "radix": Kernel("RadixCache and prefix_match from Python on the CPU."),
}
