"""How many leading tokens two sequences share; csrc/kernels/prefix has the loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from commlib.native import library


def prefix_match(a: Any, b: Any, page_size: int = 1) -> int:
    """Return how many leading tokens `a` and `b` share, rounded down to whole pages.

    Each is a list of int, or a one-dimensional int32 or int64 torch tensor, numpy array, array or memoryview.
    """
    return library.prefix_match(a, b, page_size)


def prefix_match_many(query: Any, keys: Sequence[Any], page_size: int = 1) -> Tensor:
    """Return prefix_match of one query with each of many keys, as an int64 tensor."""
    return library.prefix_match_many(query, keys, page_size)
