"""All-reduce with what a model does to each row of the result, as one call of a Communicator."""

from __future__ import annotations

import torch
from torch import Tensor

from commlib.collectives.norms import FP8, OWN_SCALES, scale_shape
from commlib.methods import Collectives
from commlib.native import library


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
        max_sms: int = 0,
    ) -> tuple[Tensor, ...]:
        """Add up all ranks' `x`, add the residual, normalise each row. See also `help(commlib.Communicator)`.

        Per row: h = all_reduce(x) + residual; y = h / sqrt(mean(h²) + eps) * (weight + weight_bias) + bias. Sums are
        rounded to the type of `x` as all_reduce and an addition would; the rest is float32, rounded once. A row's bits
        depend on that row alone. For anything else that is done to each row there is `commlib.epilogue`.

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
            max_sms: The multiprocessors of its GPU that this call takes at most, 0 for no limit.

        Returns:
            (y, h), with quant (y, h, scale).

        Example:
            >>> comm.all_reduce_rms_norm(torch.ones(8), torch.ones(8), torch.ones(8))[1]  # h, on two ranks
            tensor([3., 3., 3., 3., 3., 3., 3., 3.])
        """
        library.check_tensor(x, "x", "all_reduce_rms_norm")
        if residual_out is None:
            residual_out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if residual is None else residual
        if out is None:
            out = x if quant is None else torch.empty(x.shape, dtype=FP8, device=x.device)
        found = scale
        if quant in OWN_SCALES:
            found = torch.empty(scale_shape(x, quant), dtype=torch.float32, device=x.device)
        made = found if found is not scale else None
        if max_sms:
            given = x, residual, weight, bias, scale, out, residual_out, made, eps, weight_bias, center, quant
            self._asked("all_reduce_rms_norm", given, None, False, max_sms)
        else:
            self._calls.all_reduce_rms_norm(
                x, residual, weight, bias, scale, out, residual_out, made, eps, weight_bias, center, quant
            )
        return (out, residual_out) if found is None or quant is None else (out, residual_out, found)
