"""The norm of rows in torch's operations: what all_reduce_rms_norm means, and how it runs where no kernel serves."""

from __future__ import annotations

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
COMPUTED_SCALES = ("fp8_token", "fp8_group")  # computed by the call
GROUP = 128  # columns that share a scale in "fp8_group"


def normalised(h: Tensor, weight: Tensor, eps: float, weight_bias: float, bias: Tensor | None, center: bool) -> Tensor:
    """Return the norm of rows in float32, or in float64 of float64."""
    rows = h if h.dtype == torch.float64 else h.float()
    if center:
        rows = rows - rows.mean(-1, keepdim=True)
    y = rows * (1 / (rows.square().mean(-1, keepdim=True) + eps).sqrt()) * (weight.to(rows.dtype) + weight_bias)
    return y if bias is None else y + bias.to(rows.dtype)


def scale_shape(x: Tensor, quant: str) -> list[int]:
    """Return the shape of the scales that a call finds."""
    return [*x.shape[:-1], 1 if quant == "fp8_token" else x.shape[-1] // GROUP]


def quantised(y: Tensor, quant: str, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return float32 rows as 8-bit floats, and the scales that give them back."""
    if scale is None:
        scale = (y if quant == "fp8_token" else y.unflatten(-1, (-1, GROUP))).abs().amax(-1) / FP8_MAX
        scale = scale.view(scale_shape(y, quant))
    factor = torch.where(scale > 0, 1 / scale, 0.0)
    if quant == "fp8_group":
        factor = factor.repeat_interleave(GROUP, -1)
    return (y * factor).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale
