"""The bare calls of a second NCCL on tensors in its symmetric windows, for `commlib bench --peer`.

NEWER_NCCL=/path/of/libnccl.so.2 commlib bench --graph --dtype bfloat16 --peer benchmarks/peers/newer_nccl_windows.py
"""

from __future__ import annotations

import ctypes

from nccl_windows import Windows
from newer_nccl import opened, version


class NewerWindows(Windows):
    """The calls of the peer nccl_windows on a communicator of the other library."""

    name = "newer_nccl_windows"
    labels = ("newer_nccl_symmetric",)

    def opened(self) -> ctypes.CDLL:
        """Open the other library, whose version the rows name."""
        library = opened()
        self.title = f"NCCL {version(library)}, symmetric windows"
        return library


make = NewerWindows
