"""Which sizes `commlib bench` measures: from one to another by a factor, or named one by one, as shapes or bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from commlib.counts import counted
from commlib.env import parse_bytes
from commlib.redops import dtype_named

if TYPE_CHECKING:
    import torch

FIRST = 8  # bytes
BRIEF = (8 << 20, 32.0)  # largest size and step factor for all collectives at once: five sizes each
FULL = (64 << 20, 8.0)
MOST_SIZES = 1000
LARGEST = 1 << 40
WRITE = "write 16x7168 (rows x hidden), or bytes such as 64K; with a type, 16x7168:bf16"


@dataclass(frozen=True)
class Shape:
    """A size that was named by itself, for calls of some element types."""

    text: str  # 16x7168; "" of a number of bytes
    count: int  # elements
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all elements."""
        return self.count * self.dtype.itemsize


def sweep(low: int, high: int, factor: float) -> tuple[int, ...]:
    """Return the sizes from low to high, each `factor` times the last: distinct whole bytes."""
    if high < low:
        raise ValueError(f"-e is {counted(high, 'byte')}, less than -b with {low}")
    sizes, exact = [low], float(low)
    while 0 < exact * factor <= high * (1 + 1e-9):
        exact *= factor
        sizes.append(round(exact))
        if len(sizes) > MOST_SIZES:
            raise ValueError(f"-f {factor:g} makes more than {MOST_SIZES} sizes up to {high} bytes; use a larger")
    return tuple(dict.fromkeys(sizes))


def read_shapes(text: str, dtypes: Sequence[torch.dtype]) -> tuple[Shape, ...]:
    """Read 16x7168,64K:bf16; an item without a type is of each of `dtypes`."""
    found = [shape for item in text.split(",") for shape in _shapes(item.strip(), dtypes)]
    return tuple(dict.fromkeys(found))


def _shapes(item: str, dtypes: Sequence[torch.dtype]) -> list[Shape]:
    size, colon, name = item.partition(":")
    of = [dtype_named(name)] if colon else dtypes
    if "x" not in size.lower():
        return [Shape("", _count(item, size, dtype), dtype) for dtype in of]
    if not re.fullmatch(r"\d+(x\d+)+", size.lower()):
        raise ValueError(f"--sizes: {item!r} is no size; {WRITE}")
    count = prod(map(int, size.lower().split("x")))
    if not 0 < count <= LARGEST:
        raise ValueError(f"--sizes: {item!r} has {count} elements; {WRITE}")
    return [Shape(size.lower(), count, dtype) for dtype in of]


def _count(item: str, size: str, dtype: torch.dtype) -> int:
    try:
        num_bytes = parse_bytes(size)
    except ValueError:
        raise ValueError(f"--sizes: {item!r} is no size; {WRITE}") from None
    count, rest = divmod(num_bytes, dtype.itemsize)
    if not rest and not 0 < count <= LARGEST:
        raise ValueError(f"--sizes: {item!r} has {count} elements; {WRITE}")
    if rest:
        name = str(dtype).removeprefix("torch.")
        raise ValueError(
            f"--sizes: {item!r} is no whole number of {name} elements, {dtype.itemsize} bytes each; {WRITE}"
        )
    return count
