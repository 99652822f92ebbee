"""all_reduce_rms_norm: the sum of every rank's rows, with the residual, and the norm of each row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import gcd
from typing import Any

import torch
from torch import Tensor

from commlib.backends.torch_dist import TorchBackend
from commlib.collectives.all_reduce import ALL_REDUCE
from commlib.collectives.rows import CHUNKS, ROW_TILES, ROWS, chunks, clusters, row_tiles, rows
from commlib.collectives.spec import MAX_SMS, Algorithm, Call, Collective, Fold

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
COMPUTED_SCALES = ("fp8_token", "fp8_group")  # computed by the call
GROUP = 128  # columns that share a scale in "fp8_group"
TYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDTH = 8192  # of rows that tests and bench make
COLUMNS = 8  # rows are multiples of so many


def normalised(h: Tensor, weight: Tensor, eps: float, weight_bias: float, bias: Tensor | None, center: bool) -> Tensor:
    """Return the norm of rows in float32, or in float64 of float64."""
    rows = h if h.dtype == torch.float64 else h.float()
    if center:
        rows = rows - rows.mean(-1, keepdim=True)
    y = rows * (1 / (rows.square().mean(-1, keepdim=True) + eps).sqrt()) * (weight.to(rows.dtype) + weight_bias)
    return y if bias is None else y + bias.to(rows.dtype)


def scale_shape(x: Tensor, quant: str) -> list[int]:
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


def torch_composed(  # noqa: PLR0913, PLR0917 - the arguments of the native call
    backend: TorchBackend,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    out: Tensor,
    residual_out: Tensor,
    scale_out: Tensor | None,
    eps: float,
    weight_bias: float,
    center: bool,
    quant: str | None,
) -> None:
    """All-reduce as the plan has it, then torch's operations."""
    total = x.clone(memory_format=torch.contiguous_format)
    name = backend.choose("all_reduce", total.nbytes, str(x.dtype).removeprefix("torch."), "sum")
    run = ALL_REDUCE.algorithm(name).run
    assert run is not None
    run(backend, total, "sum")
    h = residual_out.copy_(total if residual is None else total + residual)
    y = normalised(h, weight, eps, weight_bias, bias, center)
    if quant is None:
        out.copy_(y)
        return
    narrow, scales = quantised(y, quant, scale)
    out.copy_(narrow)
    if scale_out is not None:
        scale_out.copy_(scales)


def refuses(dtype: torch.dtype, redop: str, size: int) -> str | None:
    return None if dtype in TYPES and redop == "sum" else "norms are of sums of float32, float16 or bfloat16"


def _width(call: Call) -> int:
    return gcd(call.count, WIDTH) if call.count >= WIDTH else call.count or COLUMNS


@lru_cache(maxsize=32)
def _residual_and_weight(call: Call, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return residual and weight; a graph captures the call once they are there.

    The residual has small odd numbers: what is made in place again and again does not shrink to nothing where there is
    no zero.
    """
    residual = (torch.arange(call.count, device=device) % 6 * 2 - 5).to(call.dtype).view(-1, _width(call))
    return residual, (1 + torch.arange(_width(call), device=device) % 5 / 4).to(call.dtype)


def _reference(call: Call, inputs: Sequence[Tensor], fold: Fold) -> Tensor:
    residual, weight = _residual_and_weight(call, inputs[0].device)
    total = fold([x.view(-1, _width(call)) for x in inputs], "sum").to(call.dtype) + residual
    return normalised(total.double(), weight, 1e-6, 0.0, None, False).to(call.dtype).view(-1)


def _invoke(comm: Any, x: Tensor, out: Tensor, call: Call) -> None:
    rows, (residual, weight) = x.view(-1, _width(call)), _residual_and_weight(call, x.device)
    h = torch.empty_like(residual)
    comm.all_reduce_rms_norm(rows, residual, weight, out=out.view_as(rows), residual_out=h)


_rows = partial(Algorithm, backend="nccl", kernel="all_reduce_rms_norm", refuses=refuses)

ALL_REDUCE_RMS_NORM = Collective(
    name="all_reduce_rms_norm",
    reference=_reference,
    invoke=_invoke,
    bus_factor=ALL_REDUCE.bus_factor,
    reduces=True,
    of_rows=True,
    unit=lambda count: WIDTH if count >= WIDTH else COLUMNS,
    close=lambda dtype: torch.finfo(dtype).eps + 1e-6,
    algorithms=(
        Algorithm("shm_composed", "shm", refuses=refuses),
        Algorithm("shm_oneshot", "shm", refuses=refuses, params=CHUNKS, variants=chunks),
        Algorithm("shm_twoshot", "shm", refuses=refuses, params=CHUNKS, variants=chunks),
        Algorithm("nccl_composed", "nccl", kernel="all_reduce_rms_norm", composed=True, sms=MAX_SMS, refuses=refuses),
        _rows("lsa_lamport_oneshot", params=ROWS, variants=rows),
        _rows("lsa_lamport_cluster", params=ROWS, variants=clusters),
        _rows("lsa_lamport_twoshot", params=ROWS, variants=rows),
        _rows("lsa_oneshot", params=ROW_TILES, variants=row_tiles),
        _rows("lsa_twoshot", params=ROW_TILES, variants=row_tiles),
        Algorithm("torch_composed", "torch", ordered=False, refuses=refuses, run=torch_composed),
    ),
)
