"""Data movement and attention of inference, without a communicator: the table of contents of the kernels."""

from __future__ import annotations

from commlib.kernels import device as _device  # noqa: F401 - gives native code the compiler
from commlib.kernels.attention import decode_attention
from commlib.kernels.counters import out_of_range_count
from commlib.kernels.index import index
from commlib.kernels.metadata import Metadata, metadata
from commlib.kernels.prefix import prefix_match, prefix_match_many
from commlib.kernels.store import store

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
