"""Data movement of inference without a communicator: the table of contents of the kernels."""

from __future__ import annotations

from commlib.kernels.index import index, out_of_range_count

__all__ = ["index", "out_of_range_count"]
