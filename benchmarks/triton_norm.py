"""A residual's addition and its RMSNorm in one Triton kernel, for reduce_norm.py."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_norm(y, x, residual, weight, width, eps, BLOCK: tl.constexpr):
    """Add x to the residual, and write the RMSNorm of each row of it."""
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = tl.program_id(0).to(tl.int64) * width + column
    added = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    added += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    narrow = added.to(residual.dtype.element_ty)
    tl.store(residual + at, narrow, mask=inside)
    h = narrow.to(tl.float32)
    factor = 1 / tl.sqrt(tl.sum(h * h, 0) / width + eps)
    factors = factor * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, (h * factors).to(y.dtype.element_ty), mask=inside)
