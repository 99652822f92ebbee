"""Attention of single queries over a paged cache, as decoding has it: the call, and how the CPU computes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, SupportsFloat, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from commlib.counts import counted
from commlib.kernels import dispatch
from commlib.kernels.dispatch import PLAIN, PLAIN_OR_NONE, compiling, grad_enabled
from commlib.kernels.store import LAYOUTS

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
        """Return how many requests the tables have."""
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


def decode_attention(  # noqa: PLR0913
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    tables: Tensor,
    lengths: Tensor,
    *,
    starts: Tensor | None = None,
    request_index: Tensor | None = None,
    scale: float | None = None,
    k_scale: Scale = None,
    v_scale: Scale = None,
    layout: str = "NHD",
    split_tokens: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return attention of each query `q[i]` over the first `lengths[i]` keys of its pages; no key gives zeros.

    Row i of `tables` has the pages of query i, or row `request_index[i]`. With `starts`, `tables` has one dimension,
    and its row r begins at `starts[r]`. An entry that names no page is left out with its keys. With `split_tokens`, a
    result depends, to the bit, only on its query and its keys, not on the batch or the width of the tables.
    """
    inputs = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "tables": tables, "lengths": lengths}
    optional = {"starts": starts, "request_index": request_index, "out": out}
    plain = all(type(x) in PLAIN for x in inputs.values()) and all(type(x) in PLAIN_OR_NONE for x in optional.values())
    if not plain:
        dispatch.check_tensors(
            "decode_attention", **inputs, **{name: x for name, x in optional.items() if x is not None}
        )
    if grad_enabled() and (q.requires_grad or k_cache.requires_grad or v_cache.requires_grad):
        dispatch.refuse_gradients("decode_attention", "q or a cache")
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}, but must be one of {', '.join(LAYOUTS)}")
    if split_tokens is not None and split_tokens < 1:
        raise ValueError(f"split_tokens is {split_tokens}, but must be above 0, or None")
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    dim, hnd = q.shape[-1], layout == "HND"
    rest = (tables, lengths, starts, request_index, dim**-0.5 if scale is None else scale)
    if plain and not compiling():
        k, v = in_pages(k_cache, dim, hnd), in_pages(v_cache, dim, hnd)
        _run(Call(out, q, k, v, *rest, (k_scale, v_scale), split_tokens or 0))
    else:
        _dispatched(out, q, k_cache, v_cache, *rest, *_apart(k_scale), *_apart(v_scale), split_tokens or 0, hnd)
    return out


def _run(call: Call) -> None:
    if fault := next(_faults(call), None):
        raise ValueError(fault)
    if call.q.device.type == "cuda":
        from commlib.kernels import attention_gpu

        attention_gpu.launch(call)
    elif call.q.device.type == "cpu":
        on_cpu(call)


def on_cpu(call: Call) -> None:
    """Compute one query after the other, each over its keys."""
    rows = range(len(call.q)) if call.request_index is None else call.request_index.tolist()
    as_they_are = call.scales == (None, None) and call.k_cache.dtype == call.q.dtype
    dtype = call.q.dtype if as_they_are else torch.float32
    for query, (row, length) in enumerate(zip(rows, call.lengths.tolist(), strict=True)):
        place = _places(call, _table(call, row), length)
        if not len(place[0]):
            call.out[query] = 0
            continue
        k, v = (
            _heads(_rows_at(cache, place).flatten(0, -3)[:length], scale, dtype)
            for cache, scale in zip((call.k_cache, call.v_cache), call.scales, strict=True)
        )
        q = call.q[query].to(dtype).unflatten(0, (-1, call.group))
        result = F.scaled_dot_product_attention(q[None], k[None], v[None], scale=call.scale)
        call.out[query] = result[0].flatten(0, 1)


def _table(call: Call, row: int) -> Tensor:
    """Return the entries of a row; a row that is not there has none."""
    if not 0 <= row < call.rows:
        return call.tables.new_empty(0)
    if call.starts is None:
        return call.tables[row]
    begin = int(call.starts[row])
    return call.tables[begin:] if 0 <= begin <= len(call.tables) else call.tables[:0]


def _places(call: Call, table: Tensor, length: int) -> tuple[Tensor, ...]:
    """Return what indexes the caches for the keys: whole pages, or each key where an entry names no page."""
    size = call.page_size
    length = min(max(length, 0), len(table) * size)
    page = table[: -(-length // size)].to(torch.int64)
    seen = (page >= 0) & (page < len(call.k_cache))
    if seen.all():
        return (page,)
    token = torch.arange(length)
    token = token[seen[token // size]]
    return page[token // size], token % size


def _rows_at(cache: Tensor, place: tuple[Tensor, ...]) -> Tensor:
    """Return what lies there; whole pages by index_select, which is several times as fast as an index."""
    return cache.index_select(0, *place) if len(place) == 1 else cache[place]


def _heads(rows: Tensor, scale: Scale, dtype: torch.dtype) -> Tensor:
    """Return [heads, keys, head_dim] of rows of a cache, in float32 where there is a scale."""
    if scale is None:
        return rows.to(dtype).transpose(0, 1)
    factor = scale.view(-1, 1) if isinstance(scale, Tensor) else scale
    return (rows.float() * factor).transpose(0, 1)


def _apart(scale: Scale) -> tuple[Tensor | None, float | None]:
    """Return a scale as a tensor and as a number, one of which is None: an operator takes no "number or tensor"."""
    if scale is None or isinstance(scale, Tensor):
        return scale, None
    return None, float(scale)


# For torch.compile and tensor subclasses; the result is made outside, so that one operator serves both forms.
@torch.library.custom_op(
    "commlib::decode_attention_into",
    mutates_args=("out",),
    schema="(Tensor(a!) out, Tensor q, Tensor k_cache, Tensor v_cache, Tensor tables, Tensor lengths, Tensor? starts, "
    "Tensor? request_index, float scale, Tensor? k_scale, float? k_number, Tensor? v_scale, float? v_number, "
    "SymInt span_tokens, bool hnd) -> ()",
)
def _dispatched(*arguments: Any) -> None:
    out, q, k_cache, v_cache, *rest, k_scale, k_number, v_scale, v_number, span_tokens, hnd = arguments
    scales = (k_number if k_scale is None else k_scale, v_number if v_scale is None else v_scale)
    k, v = in_pages(k_cache, q.shape[-1], hnd), in_pages(v_cache, q.shape[-1], hnd)
    fields = [out, q, k, v, *rest, scales, span_tokens]
    _run(Call(*fields))


# --- what is wrong with a call: both sides of it and the remedy -------------------------------------------------------


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
