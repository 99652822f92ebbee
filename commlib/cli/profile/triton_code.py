"""The source of the Triton peers; REASON says why there are none."""

from __future__ import annotations

from typing import Any

import torch

from commlib.timing import Run

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None
REASON = "" if triton is not None else "Triton is not installed"
E4M3_LIMIT = 448.0
# Parameters of Triton's functions are annotated with names of `tl`: of all others its compiler knows nothing.


def gather(inputs: Any, block: int) -> Run:
    """Return the launch of a gather into `out`, zero rows for ids of other shards."""
    out, weights, ids = inputs.out, inputs.weights, inputs.ids
    grid = (len(ids), triton.cdiv(out.shape[1], block))
    masked = inputs.vocab_range is not None
    numbers = (out.shape[1], weights.stride(0), inputs.start, inputs.length)
    options = {"BLOCK": block, "MASKED": masked, "num_warps": _warps(block)}
    return lambda: GATHER[grid](out, weights, ids, *numbers, **options)


def scatter(inputs: Any, block: int) -> Run:
    """Return the launch of a scatter of K and V, divided by their scales and clamped if the caches are fp8."""
    grid = (len(inputs.slots), triton.cdiv(inputs.k.shape[1], block))
    tensors = (inputs.k_cache, inputs.v_cache, inputs.slots, inputs.k, inputs.v)
    quantises = inputs.k_cache.dtype != inputs.k.dtype
    numbers = (inputs.k.shape[1], 1 / inputs.k_scale, 1 / inputs.v_scale)
    options = {"BLOCK": block, "QUANTISES": quantises, "LIMIT": E4M3_LIMIT, "num_warps": _warps(block)}
    return lambda: SCATTER[grid](*tensors, *numbers, **options)


def metadata(inputs: Any, block: int) -> Run:
    """Return torch's cumsum and the launch of the rest."""
    ends = inputs.outputs[2][1:]

    def run() -> None:
        torch.cumsum(inputs.extend_lens, 0, dtype=torch.int32, out=ends)
        METADATA[(len(ends),)](*inputs.outputs, inputs.extend_lens, inputs.seq_lens, inputs.topk, BLOCK=block)

    return run


def _warps(block: int) -> int:
    return max(1, min(8, block // 256))


def _gather(
    out: tl.tensor,
    weights: tl.tensor,
    ids: tl.tensor,
    dim: tl.tensor,
    stride: tl.tensor,
    start: tl.tensor,
    length: tl.tensor,
    BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < dim
    local = tl.load(ids + row).to(tl.int64)
    if MASKED:
        local -= start
        here = (local >= 0) & (local < length)
        values = tl.load(weights + local * stride + column, mask=inside & here, other=0.0)
    else:
        values = tl.load(weights + local * stride + column, mask=inside)
    tl.store(out + row * dim + column, values, mask=inside)


def _scatter(
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    slots: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    dim: tl.tensor,
    k_factor: tl.tensor,
    v_factor: tl.tensor,
    BLOCK: tl.constexpr,
    QUANTISES: tl.constexpr,
    LIMIT: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < dim
    slot = tl.load(slots + token).to(tl.int64)
    keys = tl.load(k + token * dim + column, mask=inside)
    values = tl.load(v + token * dim + column, mask=inside)
    if QUANTISES:
        keys = tl.clamp(keys.to(tl.float32) * k_factor, -LIMIT, LIMIT)
        values = tl.clamp(values.to(tl.float32) * v_factor, -LIMIT, LIMIT)
    tl.store(k_cache + slot * dim + column, keys.to(k_cache.dtype.element_ty), mask=inside)
    tl.store(v_cache + slot * dim + column, values.to(v_cache.dtype.element_ty), mask=inside)


def _metadata(
    expanded: tl.tensor,
    clipped: tl.tensor,
    cu_seqlens: tl.tensor,
    positions: tl.tensor,
    request_index: tl.tensor,
    total: tl.tensor,
    extend_lens: tl.tensor,
    seq_lens: tl.tensor,
    topk: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    request = tl.program_id(0)
    end = tl.load(cu_seqlens + request + 1)
    count = tl.load(extend_lens + request)
    length = tl.load(seq_lens + request)
    step = tl.arange(0, BLOCK)
    inside = step < count
    at = end - count + step
    lengths = tl.maximum(length - count + 1 + step, 0)
    tl.store(expanded + at, lengths, mask=inside)
    tl.store(clipped + at, tl.minimum(lengths, topk), mask=inside)
    tl.store(positions + at, lengths - 1, mask=inside)
    tl.store(request_index + at, request + tl.zeros_like(step), mask=inside)
    if request == 0:
        tl.store(cu_seqlens, 0)
    if request == tl.num_programs(0) - 1:
        tl.store(total, end)


if triton is not None:
    # Not as decorators: they would make the functions untyped.
    GATHER, SCATTER, METADATA = (triton.jit(function) for function in (_gather, _scatter, _metadata))
