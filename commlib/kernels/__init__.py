"""Data movement and attention of inference, without a communicator: the table of contents of the kernels."""

from __future__ import annotations

from commlib.build.device_code import compile_kernel
from commlib.kernels.attention import decode_attention
from commlib.kernels.index import index, out_of_range_count
from commlib.kernels.metadata import Metadata, metadata
from commlib.kernels.prefix import prefix_match, prefix_match_many
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


def _build(source: str, expression: str, arch: str) -> tuple[bytes, str]:
    kernel = compile_kernel(source, expression, arch)
    return kernel.code, kernel.symbol


library.set_builder(_build)
