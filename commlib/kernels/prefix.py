"""How many leading tokens two sequences share; csrc/kernels/prefix.cc has the loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from torch import Tensor

from commlib.extension import functions


def prefix_match(a: Any, b: Any, page_size: int = 1) -> int:
    """Return how many leading tokens `a` and `b` share, rounded down to whole pages.

    Both are one-dimensional int32 or int64 and may differ in that: torch tensors on the CPU, numpy arrays, arrays,
    memoryviews.
    """
    return _one()(a, b, page_size)  # type: ignore[no-any-return]


def prefix_match_many(query: Any, keys: Sequence[Any], page_size: int = 1) -> Tensor:
    """Return what prefix_match gives for one query and each of many keys, as an int64 tensor, in one call."""
    return _many()(query, keys, page_size)  # type: ignore[no-any-return]


@cache
def _one() -> Callable[..., Any]:
    return functions()["prefix_match"]


@cache
def _many() -> Callable[..., Any]:
    return functions()["prefix_match_many"]
