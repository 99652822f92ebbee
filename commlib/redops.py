"""Reductions and element types: their names, and the codes native code knows them by."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

REDOPS: tuple[str, ...] = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
"""A name's position is its code in native code (commlib/dtype.h)."""

DTYPES: tuple[str, ...] = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("bool", "complex64", "complex128"),
)
"""Likewise; other element types can be moved, not reduced."""

TORCH_OPS = {name: getattr(dist.ReduceOp, "PRODUCT" if name == "prod" else name.upper()) for name in REDOPS}
CODES: dict[Any, int] = {op: code for code, names in enumerate(TORCH_OPS.items()) for op in names}
"""What callers may give for a reduction: its name, or torch's ReduceOp."""


def redop_name(op: Any) -> str:
    """Return the name of a reduction given by name or as a torch.distributed.ReduceOp."""
    try:
        return REDOPS[CODES[op]]
    except (KeyError, TypeError):
        names = ", ".join(REDOPS)
        raise ValueError(f"unknown reduction {op!r}; use one of {names} or a torch.distributed.ReduceOp") from None
