"""One call of decode attention: its tensors in one form, checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, SupportsFloat, TypeAlias

import torch
from torch import Tensor

from commlib.counts import counted

QUERY_TYPES = (torch.bfloat16, torch.float16, torch.float32)
FP8 = torch.float8_e4m3fn
INTEGERS = (torch.int32, torch.int64)
MAX_DIM, MAX_GROUP = 256, 64
MAX_TOKENS = 2**31 - 2**16  # of a query: the GPU counts them in int32
STEP = 16  # of split_tokens

Scale: TypeAlias = "float | Tensor | None"


class Call(NamedTuple):
    """What attends to what; caches are [pages, page_size, heads, head_dim], whatever form they had."""

    out: Tensor
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    tables: Tensor
    lengths: Tensor
    starts: Tensor | None
    request_index: Tensor | None
    scale: float
    scales: tuple[Scale, Scale] = (None, None)  # of K and V, by which the cache is multiplied
    span_tokens: int = 0  # keys that are added up together; 0: as many as keep a GPU busy

    @property
    def group(self) -> int:
        """Return how many heads read one KV head."""
        return self.q.shape[1] // self.k_cache.shape[2]

    @property
    def page_size(self) -> int:
        """Return how many keys an entry of the tables stands for."""
        return self.k_cache.shape[1]

    @property
    def rows(self) -> int:
        return len(self.tables) if self.starts is None else len(self.starts)

    @property
    def max_tokens(self) -> int:
        """Return how many keys a query can have: what the tables have room for."""
        return self.tables.shape[-1] * self.page_size


def in_pages(cache: Tensor, head_dim: int, hnd: bool) -> Tensor:
    """Return a view [pages, page_size, heads, head_dim] of a cache of any layout that `store` writes."""
    if cache.dim() == 2 and head_dim and cache.shape[1] % head_dim == 0:
        cache = cache.unflatten(1, (-1, head_dim))
    if cache.dim() == 3:
        return cache.unsqueeze(1)
    return cache.transpose(1, 2) if hnd and cache.dim() == 4 else cache


def checked(call: Call) -> Call:
    """Return the call, or raise what is wrong with it, both sides of it and the remedy."""
    fault = next(_faults(call), None)
    if fault:
        raise ValueError(fault)
    return call


def _faults(call: Call) -> Iterator[str]:
    yield from _faulty_places(call)
    yield from _faulty_queries(call)
    yield from _faulty_caches(call)
    yield from _faulty_tables(call)
    yield from _faulty_scales(call)
    if call.span_tokens < 0 or call.span_tokens % STEP:
        yield f"split_tokens is {call.span_tokens}, but must be a multiple of {STEP}"


def _faulty_places(call: Call) -> Iterator[str]:
    tensors = [(name, x) for name, x in call._asdict().items() if isinstance(x, Tensor)]
    tensors += [(name, x) for name, x in zip(("k_scale", "v_scale"), call.scales, strict=True) if isinstance(x, Tensor)]
    for name, tensor in tensors:
        if tensor.device != call.q.device:
            yield f"{name} is on {tensor.device}, but q on {call.q.device}; move them to one device"


def _faulty_queries(call: Call) -> Iterator[str]:
    q, out = call.q, call.out
    if q.dim() != 3:
        yield f"q has {counted(q.dim(), 'dimension')}, but must have 3: queries, heads, head_dim; reshape it"
    if q.dtype not in QUERY_TYPES:
        yield f"q is {q.dtype}, but must be bfloat16, float16 or float32"
    if not 1 <= q.shape[2] <= MAX_DIM:
        yield f"head_dim is {q.shape[2]}, but must be from 1 to {MAX_DIM}"
    if (out.shape, out.dtype) != (q.shape, q.dtype):
        yield f"out is {out.dtype} {tuple(out.shape)}, but q is {q.dtype} {tuple(q.shape)}; they must be equal"
    for name, tensor in (("q", q), ("out", out)):
        if tensor.stride(2) != 1 and tensor.shape[2] > 1:
            yield f"the last dimension of {name} is not contiguous; call contiguous()"


def _faulty_caches(call: Call) -> Iterator[str]:
    q, k, v = call.q, call.k_cache, call.v_cache
    for name, cache in (("k_cache", k), ("v_cache", v)):
        if cache.dim() != 4 or cache.shape[3] != q.shape[2]:
            wanted = "slots × heads × head_dim, or pages of that"
            yield f"{name} has shape {tuple(cache.shape)}, but must be {wanted}, and q has head_dim {q.shape[2]}"
        if cache.stride(3) != 1 and cache.shape[3] > 1:
            yield f"the last dimension of {name} is not contiguous; lay the cache out again"
        if cache.dtype not in (q.dtype, FP8):
            yield f"{name} is {cache.dtype}, but must be of q's type ({q.dtype}) or float8_e4m3fn"
    if (k.shape, k.dtype) != (v.shape, v.dtype):
        yield f"k_cache is {k.dtype} {tuple(k.shape)}, but v_cache {v.dtype} {tuple(v.shape)}; they must be equal"
    heads, kv_heads = q.shape[1], k.shape[2]
    if k.shape[1] == 0:
        yield "the caches have pages of 0 slots, but a page has 1 or more"
    if kv_heads == 0 or heads % kv_heads or not 0 < heads <= MAX_GROUP * kv_heads:
        yield f"q has {counted(heads, 'head')} and the caches {kv_heads}: of q, 1 to {MAX_GROUP} heads must read each"


def _faulty_tables(call: Call) -> Iterator[str]:
    tables, queries = call.tables, len(call.q)
    rows, of_q = counted(call.rows, "row"), counted(queries, "query", "queries")
    dims = 2 if call.starts is None else 1
    if tables.dim() != dims:
        form = "requests × pages" if dims == 2 else "the pages of all requests, one after the other"
        yield f"tables has {counted(tables.dim(), 'dimension')}, but must have {dims}: {form}"
    if call.max_tokens > MAX_TOKENS:
        yield f"tables has room for {call.max_tokens} tokens of a request, but {MAX_TOKENS} is the limit"
    for name in ("tables", "lengths", "starts", "request_index"):
        tensor = getattr(call, name)
        if tensor is not None and tensor.dtype not in INTEGERS:
            yield f"{name} is {tensor.dtype}, but must be int32 or int64"
        if tensor is not None and name != "lengths" and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            yield f"{name} is not contiguous; call contiguous()"
    for name, of_queries in (("lengths", call.lengths), ("request_index", call.request_index)):
        if of_queries is not None and of_queries.shape != (queries,):
            yield f"{name} has shape {tuple(of_queries.shape)}, but q has {of_q}"
    if call.request_index is None and call.rows < queries:
        yield f"tables has {rows}, but q has {of_q}; pass request_index= if they share rows"


def _faulty_scales(call: Call) -> Iterator[str]:
    heads = call.k_cache.shape[2]
    scales: tuple[Any, Any] = call.scales
    for name, scale in zip(("k_scale", "v_scale"), scales, strict=True):
        if not isinstance(scale, Tensor):
            if not isinstance(scale, SupportsFloat | None):
                yield f"{name} is {scale!r}, but must be a number or a tensor"
            continue
        if scale.dtype != torch.float32 or scale.numel() not in (1, heads) or not scale.is_contiguous():
            form = f"{scale.dtype} {tuple(scale.shape)}"
            yield f"{name} is {form}, but must be a number, or float32 with 1 element or {heads}, contiguous"
