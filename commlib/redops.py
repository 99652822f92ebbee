"""Reductions and element types: their names, and the codes native code knows them by."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import torch
import torch.distributed as dist

from commlib.errors import meant

Redop: TypeAlias = Literal["sum", "prod", "min", "max", "avg", "band", "bor", "bxor"]
REDOPS: tuple[Redop, ...] = get_args(Redop)
"""A name's position is its code in native code (commlib/dtype.h)."""

DTYPES: tuple[str, ...] = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("bool", "complex64", "complex128"),
)
"""Likewise; other element types can be moved, not reduced."""

SHORT = {
    **{"double": "float64", "float": "float32", "half": "float16", "fp8": "float8_e4m3fn"},
    **{f"{letter}{bits}": f"float{bits}" for letter in ("f", "fp") for bits in (16, 32, 64)},
    "bf16": "bfloat16",
    **{f"{before}e4m3": "float8_e4m3fn" for before in ("", "f8", "fp8_")},
    **{f"{before}e5m2": "float8_e5m2" for before in ("", "f8", "fp8_")},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
"""What users also call them, nccl-tests' names among them."""

_TORCH_NAMES = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")
TORCH_OPS: dict[str, Any] = {
    name: getattr(dist.ReduceOp, attribute) for name, attribute in zip(REDOPS, _TORCH_NAMES, strict=False)
}
CODES: dict[Any, int] = {op: code for code, name in enumerate(REDOPS) for op in (name, TORCH_OPS.get(name, name))}
"""What callers may pass for a reduction: its name, or torch's ReduceOp."""


def redop_name(op: Any) -> str:
    names = f"{', '.join(REDOPS)} or a torch.distributed.ReduceOp"
    if not isinstance(op, (str, type(TORCH_OPS["sum"]))):  # torch's equals the integers behind it, which say nothing
        raise TypeError(f"op is of type {type(op).__name__} ({op!r}), but must be one of {names}")
    if op not in CODES:
        raise ValueError(f"unknown reduction {op!r}; use one of {names}")
    return REDOPS[CODES[op]]


def torch_name(name: str) -> str:
    """Return torch's name of what nccl-tests or a user calls so."""
    return SHORT.get(name, name)


def dtype_named(name: str) -> torch.dtype:
    """Return the element type that torch, nccl-tests or a user calls so."""
    if torch_name(name) not in DTYPES:
        known = [*DTYPES, *SHORT]
        raise ValueError(f"no element type {name!r}{meant(name, known) or ';'} there are {', '.join(known)}")
    dtype: torch.dtype = getattr(torch, torch_name(name))
    return dtype
