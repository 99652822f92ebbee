"""All-reduce with what a model does to each row of the result, as one call of a Communicator."""

from __future__ import annotations

import torch
from torch import Tensor

from commlib import compiled
from commlib.methods import Collectives

FP8 = torch.float8_e4m3fn
FP8_MOST = 448.0
GROUP = 128  # elements that share a scale in "fp8_group"


class Fused(Collectives):
    """The calls that a tensor-parallel layer ends with."""

    def all_reduce_rms_norm(  # noqa: PLR0913 - what a norm of a model has
        self,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        eps: float = 1e-6,
        *,
        weight_bias: float = 0.0,
        bias: Tensor | None = None,
        center: bool = False,
        quant: str | None = None,
        scale: Tensor | None = None,
        out: Tensor | None = None,
        residual_out: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Add up all ranks' `x`, add the residual, normalise each row. See also `help(commlib.Communicator)`.

        Per row: h = all_reduce(x) + residual; y = h / sqrt(mean(h²) + eps) * (weight + weight_bias) + bias. Sums are
        rounded to the type of `x` as all_reduce and an addition would; the rest is float32, rounded once. A row's bits
        depend on that row alone.

        Args:
            x: Rows in the last dimension, of float32, float16 or bfloat16; rows may be strided. Without `out`, y takes
                its place.
            residual: As x, the same on all ranks; None adds nothing. Without `residual_out`, h takes its place.
            weight: One factor for each column, of the type of x or float32.
            eps: What keeps a row of zeros from a division by zero.
            weight_bias: Added to the weight: 1.0 for Gemma's norm.
            bias: Added to each row, like weight.
            center: Subtract the row's mean first: with it and a bias, this is LayerNorm.
            quant: y as float8_e4m3fn: "fp8" with a given scale, "fp8_token" with one for each row, "fp8_group" with one
                for each 128 columns; y * scale is then about what it would be without.
            scale: One float32 number, for "fp8" alone.
            out: Where to put y.
            residual_out: Where to put h.

        Returns:
            (y, h), with quant (y, h, scale).

        Example:
            >>> y, residual = comm.all_reduce_rms_norm(x, residual, weight)
        """
        if torch.compiler.is_dynamo_compiling():
            form = weight, bias, eps, weight_bias, center, quant, scale
            return compiled.all_reduce_rms_norm(self._graph_name, x, residual, *form, out, residual_out)
        total = self.all_reduce(x.contiguous(), out=torch.empty(x.shape, dtype=x.dtype, device=x.device))
        h = total if residual is None else total + residual
        y = normalised(h, weight, eps, weight_bias, bias, center)
        if residual_out is None:
            residual_out = torch.empty_like(total) if residual is None else residual
        residual_out.copy_(h)
        if quant is None:
            return (x if out is None else out).copy_(y), residual_out
        y, scale = quantised(y, quant, scale)
        return y if out is None else out.copy_(y), residual_out, scale


def normalised(h: Tensor, weight: Tensor, eps: float, weight_bias: float, bias: Tensor | None, center: bool) -> Tensor:
    """Return the norm of rows in float32."""
    rows = h.float()
    if center:
        rows = rows - rows.mean(-1, keepdim=True)
    y = rows / (rows.square().mean(-1, keepdim=True) + eps).sqrt() * (weight.float() + weight_bias)
    return y if bias is None else y + bias.float()


def quantised(y: Tensor, quant: str, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return float32 rows as 8-bit floats, and the scales that give them back."""
    if quant == "fp8":
        if scale is None:
            raise ValueError('quant="fp8" needs a scale; "fp8_token" and "fp8_group" find their own')
    elif quant == "fp8_token":
        scale = y.abs().amax(-1, keepdim=True) / FP8_MOST
    else:
        scale = y.unflatten(-1, (-1, GROUP)).abs().amax(-1) / FP8_MOST
    factor = torch.where(scale > 0, 1 / scale, 0.0)
    if quant == "fp8_group":
        factor = factor.repeat_interleave(GROUP, -1)
    return (y * factor).clamp(-FP8_MOST, FP8_MOST).to(FP8), scale
