"""What a fused norm of rows must be on a GPU, to the bit: the order of every sum is that of csrc/device/row.cuh."""

from typing import Any

import torch
from torch import Tensor

from commlib.collectives.reference import ordered
from tests.fused import drawn

THREADS, LANES, LARGEST = 512, 32, 448.0
FP8 = torch.float8_e4m3fn


def of_ranks(world: int, rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    return [drawn(1000 * seed + rank, rows, width, dtype=dtype) for rank in range(world)]


def by_halves(values: Tensor) -> Tensor:
    """Return the sum over the last dimension, which is a power of two."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[..., :half] + values[..., half:]
    return values.squeeze(-1)


def sum_of_rows(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sums of float32 rows that came as `dtype`: every 512th 16 bytes in one thread, then halves."""
    elements = 16 // dtype.itemsize
    turns = -(-rows.shape[1] // (THREADS * elements))
    padded = rows.new_zeros(len(rows), turns * THREADS * elements)
    padded[:, : rows.shape[1]] = rows
    parts = padded.view(len(rows), turns, THREADS // LANES, LANES, elements)
    total = torch.zeros_like(parts[:, 0])
    for turn in range(turns):
        total = total + parts[:, turn]
    return by_halves(by_halves(by_halves(total)))


def quotient(a: Tensor | float, b: Tensor | float) -> Tensor:
    """Divide, rounded once: a library for vectors may be off by a bit in float32, and float64 hides that."""
    return (torch.as_tensor(a).double() / torch.as_tensor(b).double()).float()


def root(a: Tensor) -> Tensor:
    return a.double().sqrt().float()


def norm_of(h: Tensor, weight: Tensor, form: dict[str, Any], bias: Tensor | None = None) -> Tensor:
    """Return the norm in float32. On the CPU: a GPU's torch divides by numbers with their inverse."""
    width, rows = h.shape[1], h.float()
    if form.get("center"):
        rows = rows - quotient(sum_of_rows(rows, h.dtype), width)[:, None]
    square = quotient(sum_of_rows(rows * rows, h.dtype), width)
    factor = quotient(1.0, root(square + torch.tensor(form.get("eps", 1e-6))))
    y = rows * (weight.float() + torch.tensor(form.get("weight_bias", 0.0))) * factor[:, None]
    return y if bias is None else y + bias.float()


def quantised(y: Tensor, quant: str, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return 8-bit floats and scales."""
    if quant == "fp8_token":
        scale = quotient(y.abs().amax(-1, keepdim=True), LARGEST)
    elif quant == "fp8_group":
        scale = quotient(y.unflatten(-1, (-1, 128)).abs().amax(-1), LARGEST)
    assert scale is not None
    factor = torch.where(scale > 0, quotient(1.0, scale), 0.0)
    spread = factor.repeat_interleave(128, -1) if quant == "fp8_group" else factor
    return (y * spread).clamp(-LARGEST, LARGEST).to(FP8), scale


def expected(inputs: list[Tensor], residual: Tensor | None, weight: Tensor, **form: Any) -> tuple[Tensor, ...]:
    """Return what the call returns for these inputs of the ranks."""
    total = ordered(inputs, "sum")
    h = total if residual is None else total + residual
    y = norm_of(h, weight, form, form.get("bias"))
    if form.get("quant") is None:
        return y.to(h.dtype), h
    q, scale = quantised(y, form["quant"], form.get("scale"))
    return q, h, scale


def differ(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> str:
    """Say which results have other bits."""
    for name, a, b in zip(("y", "h", "scale")[: len(found)], found, wanted, strict=True):
        if a.shape != b.shape:
            return f"{name}: {tuple(a.shape)} and not {tuple(b.shape)}"
        same = a.cpu().reshape(-1).view(torch.uint8) == b.reshape(-1).view(torch.uint8)
        if not bool(same.all()):
            return f"{name}: {int((~same).sum())} of {same.numel()} bytes"
    return ""
