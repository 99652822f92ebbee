"""Attention of single queries over a paged cache, as decoding has it: the call, and how the CPU computes it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from commlib.kernels import dispatch
from commlib.kernels.attention_call import Call, Scale, checked, in_pages
from commlib.kernels.dispatch import PLAIN, PLAIN_OR_NONE, compiling, grad_enabled
from commlib.kernels.store import LAYOUTS


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
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    tensors = (out, q, k_cache, v_cache, tables, lengths, starts, request_index)
    rest = (factor, layout == "HND", split_tokens or 0)
    if plain and not compiling():
        _run(*tensors, k_scale, v_scale, *rest)
    else:
        _dispatched(*tensors, *_apart(k_scale), *_apart(v_scale), *rest)
    return out


def _run(  # noqa: PLR0913, PLR0917
    out: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    tables: Tensor,
    lengths: Tensor,
    starts: Tensor | None,
    request_index: Tensor | None,
    k_scale: Scale,
    v_scale: Scale,
    scale: float,
    hnd: bool,
    span_tokens: int,
) -> None:
    k, v = (in_pages(cache, q.shape[-1], hnd) for cache in (k_cache, v_cache))
    numbers = (scale, (k_scale, v_scale), span_tokens)
    call = checked(Call(out, q, k, v, tables, lengths, starts, request_index, *numbers))
    if q.device.type == "cuda":
        from commlib.kernels import attention_gpu

        attention_gpu.launch(call)
    elif q.device.type == "cpu":
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
@torch.library.custom_op("commlib::decode_attention_into", mutates_args=("out",))
def _dispatched(  # noqa: PLR0913, PLR0917
    out: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    tables: Tensor,
    lengths: Tensor,
    starts: Tensor | None,
    request_index: Tensor | None,
    k_scale: Tensor | None,
    k_number: float | None,
    v_scale: Tensor | None,
    v_number: float | None,
    scale: float,
    hnd: bool,
    span_tokens: int,
) -> None:
    scales = (k_number if k_scale is None else k_scale, v_number if v_scale is None else v_scale)
    tensors = (out, q, k_cache, v_cache, tables, lengths, starts, request_index)
    _run(*tensors, *scales, scale, hnd, span_tokens)


@_dispatched.register_fake
def _(*arguments: object) -> None:
    pass
