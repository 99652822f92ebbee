"""Triton's kernels as a baseline, in Triton's style: its compiler knows no types of parameters; and their launches."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from commlib.tools.baselines.peer import in_turn
from commlib.tools.timing import Run

READ_BLOCK = 8192  # elements of a program


@triton.jit
def gather(out, weights, ids, dim, stride, start, length, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """Copy rows into `out`, zeros for ids of other shards."""
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


@triton.jit
def scatter(
    k_cache,
    v_cache,
    slots,
    k,
    v,
    dim,
    k_factor,
    v_factor,
    BLOCK: tl.constexpr,
    QUANTISES: tl.constexpr,
    LIMIT: tl.constexpr,
):
    """Copy K and V into their slots, divided by their scales and clamped if the caches are fp8."""
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


@triton.jit
def read(out, x, count, BLOCK: tl.constexpr):
    """Add up a block of whole numbers: as little more than reading as can be."""
    begin = tl.program_id(0).to(tl.int64) * BLOCK
    place = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0), tl.sum(tl.load(x + begin + place, mask=place < count - begin, other=0), 0))


@triton.jit
def metadata(
    expanded, clipped, cu_seqlens, positions, request_index, total, extend_lens, seq_lens, topk, BLOCK: tl.constexpr
):
    """Write what attention must know of one request; the ends are there already."""
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


# --- their calls on a set of inputs, with so many elements a program


def gathering(inputs: Any, block: int) -> Run:
    dim = inputs.out.shape[1]
    kernel = gather[len(inputs.ids), -(-dim // block)]
    tensors = (inputs.out, inputs.weights, inputs.ids)
    numbers = (dim, inputs.weights.stride(0), inputs.start, inputs.length)
    masked = inputs.vocab_range is not None
    return partial(kernel, *tensors, *numbers, BLOCK=block, MASKED=masked, num_warps=_warps(block))


def scattering(inputs: Any, block: int) -> Run:
    dim = inputs.k.shape[1]
    kernel = scatter[len(inputs.slots), -(-dim // block)]
    tensors = (inputs.k_cache, inputs.v_cache, inputs.slots, inputs.k, inputs.v)
    numbers = (dim, 1 / inputs.k_scale, 1 / inputs.v_scale)
    options = {"BLOCK": block, "QUANTISES": inputs.quantises, "LIMIT": inputs.limit, "num_warps": _warps(block)}
    return partial(kernel, *tensors, *numbers, **options)


def deriving(inputs: Any, block: int) -> Run:
    ends = inputs.outputs[2][1:]
    tensors = (*inputs.outputs, inputs.extend_lens, inputs.seq_lens)
    return in_turn(
        partial(torch.cumsum, inputs.extend_lens, 0, dtype=torch.int32, out=ends),
        partial(metadata[len(ends),], *tensors, inputs.topk, BLOCK=block),
    )


def reading(inputs: Any) -> Run:
    """Return the floor that reads the source of a set, and writes next to nothing."""
    source = inputs.source[: len(inputs.source) // 4 * 4].view(torch.int32)
    programs = -(-len(source) // READ_BLOCK)
    out = source.new_empty(programs)
    return partial(read[programs,], out, source, len(source), BLOCK=READ_BLOCK, num_warps=8)


def _warps(block: int) -> int:
    return max(1, min(8, block // 256))
