"""Attention of single queries over a paged cache, for decoding; csrc/kernels/attention/check.cc has the checks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from commlib.kernels import dispatch
from commlib.kernels.dispatch import PLAIN, PLAIN_OR_NONE, Scale, apart, compiling, grad_enabled
from commlib.kernels.store import LAYOUTS
from commlib.native import library

FP8 = torch.float8_e4m3fn


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
        return self.q.shape[1] // self.k_cache.shape[2]  # heads that read one KV head

    @property
    def page_size(self) -> int:
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
    rest = (tables, lengths, starts, request_index, (dim or 1) ** -0.5 if scale is None else scale)
    if plain and not compiling():
        k, v = in_pages(k_cache, dim, hnd), in_pages(v_cache, dim, hnd)
        _run(Call(out, q, k, v, *rest, (k_scale, v_scale), split_tokens or 0))
    else:
        _dispatched(out, q, k_cache, v_cache, *rest, *apart(k_scale), *apart(v_scale), split_tokens or 0, hnd)
    return out


def _run(call: Call) -> None:
    try:
        library.check_decode_attention(*call[:8], *call.scales, call.span_tokens)
    except ValueError:
        if not dispatch.on_meta(*call[:8], *call.scales):
            raise
        return
    if call.q.device.type == "cuda":
        from commlib.kernels import attention_gpu

        attention_gpu.launch(call)
    else:
        on_cpu(call)


def on_cpu(call: Call) -> None:
    """Compute one query after the other, each over its keys."""
    rows = range(len(call.q)) if call.request_index is None else call.request_index.tolist()
    as_they_are = call.scales == (None, None) and call.k_cache.dtype == call.q.dtype
    dtype = call.q.dtype if as_they_are else torch.float32
    for query, (row, length) in enumerate(zip(rows, call.lengths.tolist(), strict=True)):
        pages, count = _pages(call, _table(call, row), length)
        if not count:
            call.out[query] = 0
            continue
        k, v = (
            _heads(cache.index_select(0, pages).flatten(0, 1)[:count], scale, dtype)
            for cache, scale in zip((call.k_cache, call.v_cache), call.scales, strict=True)
        )
        q = call.q[query].to(dtype).unflatten(0, (-1, call.group))
        result = F.scaled_dot_product_attention(q[None], k[None], v[None], scale=call.scale)
        call.out[query] = result[0].flatten(0, 1)


def _table(call: Call, row: int) -> Tensor:
    if not 0 <= row < call.rows:
        return call.tables.new_empty(0)
    if call.starts is None:
        return call.tables[row]
    begin = int(call.starts[row])
    return call.tables[begin:] if 0 <= begin <= len(call.tables) else call.tables[:0]


def _pages(call: Call, table: Tensor, length: int) -> tuple[Tensor, int]:
    """Return the pages of the keys, without entries that name none, and how many keys they have."""
    size = call.page_size
    length = min(max(length, 0), len(table) * size)
    page = table[: -(-length // size)].to(torch.int64)
    seen = (page >= 0) & (page < len(call.k_cache))
    unused = len(page) * size - length if length and seen[-1] else 0  # slots of the last page
    page = page[seen]
    return page, len(page) * size - unused


def _heads(rows: Tensor, scale: Scale, dtype: torch.dtype) -> Tensor:
    """Return [heads, keys, head_dim] of rows of a cache, in float32 where there is a scale."""
    if scale is None:
        return rows.to(dtype).transpose(0, 1)
    factor = scale.view(-1, 1) if isinstance(scale, Tensor) else scale
    return (rows.float() * factor).transpose(0, 1)


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
