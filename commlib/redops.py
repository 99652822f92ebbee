"""Reductions: their names, and the codes native code knows them by."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

REDOPS: tuple[str, ...] = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
"""A name's position is its code in native code (commlib/dtype.h)."""

_TORCH_NAMES = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")
_CODES: dict[Any, int] = {name: code for code, name in enumerate(REDOPS)} | {
    getattr(dist.ReduceOp, name): code for code, name in enumerate(_TORCH_NAMES)
}


def redop_code(op: Any) -> int:
    """Return the code of a reduction given by name or as a torch.distributed.ReduceOp."""
    try:
        return _CODES[op]
    except (KeyError, TypeError):
        names = ", ".join(REDOPS)
        raise ValueError(f"unknown reduction {op!r}; use one of {names} or a torch.distributed.ReduceOp") from None
