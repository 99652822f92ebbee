"""Epilogues that tests share. Their references have the order of csrc/device/row.cuh, and so its bits, on a CPU."""

import torch
from torch import Tensor

import commlib
from tests.gpu.rows import by_halves, quotient, root, sum_of_rows

HEAD = 128  # columns
FP8_MAX = 448.0


def _scaled(x: Tensor, residual: Tensor, weight: Tensor, limit: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    h = (x + residual).float()
    most = h.abs().amax(-1, keepdim=True) + torch.tensor(eps)
    return h * weight.float() * quotient(limit.float(), most), most


SCALED = commlib.epilogue(
    """
    const Row h = round(x + load(residual));
    const float most = max(abs(h)) + eps;
    store(out, h * load(weight) * (limit / most));
    set(largest, most);
    """,
    inputs={"residual": "row", "weight": "columns", "limit": "number"},
    outputs={"out": ("row", None), "largest": ("number", torch.float32)},
    numbers=("eps",),
    reference=_scaled,
    name="scaled",
)


def _of_heads(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum of each head, in every column of it."""
    elements = 16 // dtype.itemsize
    sums = by_halves(by_halves(values.unflatten(-1, (-1, HEAD // elements, elements))))
    return sums.repeat_interleave(HEAD, -1)


def _qk_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    h = x if residual is None else x + residual
    rows = h.float()
    mean_square = quotient(_of_heads(rows * rows, x.dtype), HEAD)
    return rows * quotient(1.0, root(mean_square + torch.tensor(eps))) * weight.float(), h


QK_NORM = commlib.epilogue(
    """
    const Row h = has(residual) ? round(x + load(residual)) : x;
    store(residual_out, h);
    const Row square = sum_of_groups<128>(h * h) / 128.f;
    store(out, h * map(square, [&](float each) { return 1.f / sqrtf(each + eps); }) * load(weight));
    """,
    inputs={"residual": "row", "weight": "columns"},
    outputs={"out": ("row", None), "residual_out": ("row", None)},
    numbers=("eps",),
    reference=_qk_norm,
    name="qk_norm",
)


def _int8(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = quotient(x.float().abs().amax(-1, keepdim=True), 127.0)
    return x.float() * torch.where(scale > 0, quotient(1.0, scale), 0.0), scale


INT8 = commlib.epilogue(
    """
    const float found = max(abs(x)) / 127.f;
    set(scale, found);
    store(out, x * (found > 0.f ? 1.f / found : 0.f));
    """,
    outputs={"out": ("row", torch.int8), "scale": ("number", torch.float32)},
    reference=_int8,
    name="int8_token",
)


def _norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, weight_bias: float) -> tuple[Tensor, Tensor]:
    h = x if residual is None else x + residual
    rows = h.float()
    square = sum_of_rows((rows * rows).flatten(0, -2), x.dtype)
    mean_square = quotient(square, x.shape[-1]).view(*x.shape[:-1], 1)
    factor = quotient(1.0, root(mean_square + torch.tensor(eps)))
    return rows * (weight.float() + torch.tensor(weight_bias)) * factor, h


RMS_NORM = commlib.epilogue(
    """
    const Row h = has(residual) ? round(x + load(residual)) : x;
    store(residual_out, h);
    store(out, h * (load(weight) + weight_bias) * (1.f / sqrtf(sum(h * h) / width + eps)));
    """,
    inputs={"residual": "row", "weight": "columns"},
    outputs={"out": ("row", None), "residual_out": ("row", None)},
    numbers=("eps", "weight_bias"),
    reference=_norm,
    name="rms_norm",
)


def _grouped(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, weight_bias: float
) -> tuple[Tensor, Tensor, Tensor]:
    y, h = _norm(x, residual, weight, eps, weight_bias)
    scale = quotient(y.unflatten(-1, (-1, HEAD)).abs().amax(-1), FP8_MAX)
    factor = torch.where(scale > 0, quotient(1.0, scale), 0.0)
    return y * factor.repeat_interleave(HEAD, -1), h, scale


FP8_GROUPS = commlib.epilogue(
    """
    const Row h = has(residual) ? round(x + load(residual)) : x;
    store(residual_out, h);
    const Row y = h * (load(weight) + weight_bias) * (1.f / sqrtf(sum(h * h) / width + eps));
    const Row found = max_of_groups<128>(abs(y)) / 448.f;
    set_groups<128>(scale, found);
    store(out, y * map(found, [](float each) { return each > 0.f ? 1.f / each : 0.f; }));
    """,
    inputs={"residual": "row", "weight": "columns"},
    outputs={"out": ("row", torch.float8_e4m3fn), "residual_out": ("row", None), "scale": ("groups", torch.float32)},
    numbers=("eps", "weight_bias"),
    reference=_grouped,
    name="fp8_groups",
)


def has_other_bits(found: Tensor, wanted: Tensor) -> bool:
    """Whether an output is not this result of a reference, rounded as device code does."""
    wide = wanted.double()
    if found.dtype == torch.int8:
        wide = wide.round().clamp(-128, 127)
    elif found.dtype.itemsize == 1:
        wide = wide.clamp(-FP8_MAX, FP8_MAX)
    bits = [value.contiguous().view(-1).view(torch.uint8) for value in (found.cpu(), wide.float().to(found.dtype))]
    return found.shape != wanted.shape or not torch.equal(*bits)
