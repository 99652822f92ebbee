"""Data movement and attention of inference, without a communicator: the table of contents of the kernels."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from commlib.build.device_code import compile_kernel
from commlib.kernels.attention import decode_attention
from commlib.kernels.index import index, out_of_range_count
from commlib.kernels.metadata import Metadata, metadata
from commlib.kernels.store import store
from commlib.native import library

__all__ = [
    "Metadata",
    "decode_attention",
    "index",
    "metadata",
    "out_of_range_count",
    "prefix_match",
    "prefix_match_many",
    "store",
]


def prefix_match(a: Any, b: Any, page_size: int = 1) -> int:
    """Return how many leading tokens `a` and `b` share, rounded down to whole pages.

    Each is a list of int, or a one-dimensional int32 or int64 torch tensor, numpy array, array or memoryview.
    """
    return library.prefix_match(a, b, page_size)


def prefix_match_many(query: Any, keys: Sequence[Any], page_size: int = 1) -> Tensor:
    """Return prefix_match of one query with each of many keys, as an int64 tensor."""
    return library.prefix_match_many(query, keys, page_size)


def _build(source: str, expression: str, arch: str) -> tuple[bytes, str]:
    kernel = compile_kernel(source, expression, arch)
    return kernel.code, kernel.symbol


library.set_builder(_build)
