"""References for reductions: `ordered` to the bit, `exact` in float64 for tolerances."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch

_WIDE = {torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}
_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
NARROW_INTEGERS = {torch.int8, torch.uint8, torch.int16, torch.uint16}

# The functions of torch, and of numpy.
_STEPS = {
    "sum": "add",
    "avg": "add",
    "prod": "multiply",
    "min": "minimum",
    "max": "maximum",
    "band": "bitwise_and",
    "bor": "bitwise_or",
    "bxor": "bitwise_xor",
}


def ordered(inputs: Sequence[torch.Tensor], redop: str) -> torch.Tensor:
    """Reduce in rank order the way commlib promises: fp32 for small floats, one rounding, integers wrap.

    Averages of integers of 8 and 16 bits are added up in 32.
    """
    dtype, size = inputs[0].dtype, len(inputs)
    if redop == "avg" and dtype in NARROW_INTEGERS:
        return ordered([x.int() for x in inputs], redop).to(dtype)
    if dtype in _UNSIGNED:
        return _ordered_unsigned(inputs, redop)
    if dtype == torch.bool:
        any_or_all = {"sum": "bor", "max": "bor", "prod": "band", "min": "band"}.get(redop, redop)
        return _fold(inputs, any_or_all)
    if dtype in _WIDE:
        total = _finish(_fold([x.float() for x in inputs], redop), redop, size)
        if dtype == torch.float8_e4m3fn:
            total = total.clamp(-448, 448)  # saturates; torch before 2.13 made it NaN
        return total.to(dtype)
    return _finish(_fold(inputs, redop), redop, size)


def exact(inputs: Sequence[torch.Tensor], redop: str) -> torch.Tensor:
    """Reduce in float64 (complex128 for complex numbers): what tolerances are measured against."""
    wide = torch.complex128 if inputs[0].is_complex() else torch.float64
    return _finish(_fold([x.to(wide) for x in inputs], redop), redop, len(inputs))


def reducible(dtype: torch.dtype, redop: str) -> bool:
    bitwise = redop in ("band", "bor", "bxor")
    if dtype == torch.bool:
        return redop != "avg"
    if dtype.is_complex:
        return redop in ("sum", "avg")
    return not (bitwise and dtype.is_floating_point)


def _fold(inputs: Sequence[torch.Tensor], redop: str) -> torch.Tensor:
    return functools.reduce(getattr(torch, _STEPS[redop]), inputs[1:], inputs[0].clone())


def _finish(total: torch.Tensor, redop: str, n: int) -> torch.Tensor:
    if redop != "avg":
        return total
    if total.is_floating_point() or total.is_complex():
        # A complex number is two floats, each divided on its own.
        parts = torch.view_as_real(total) if total.is_complex() else total
        quotient = parts / n
        return torch.view_as_complex(quotient) if total.is_complex() else quotient
    return torch.div(total, n, rounding_mode="trunc")


def _ordered_unsigned(inputs: Sequence[torch.Tensor], redop: str) -> torch.Tensor:
    """Go through numpy: torch has few operations on wide unsigned integers."""
    first, *others = (x.cpu().numpy() for x in inputs)
    total = functools.reduce(getattr(np, _STEPS[redop]), others, first.copy())
    return torch.from_numpy(np.asarray(total // len(inputs) if redop == "avg" else total))
