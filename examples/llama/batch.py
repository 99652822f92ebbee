"""The new tokens of a batch: where each is in its request, in the cache, and what it sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from commlib.kernels import decode_attention, metadata

# Keys that are added up together: with the same number always, a row's bits depend neither on the batch nor on the
# width of the tables. Few, so that short requests keep a GPU busy, too.
SPLIT_TOKENS = 256


class View(NamedTuple):
    """A request with several new tokens."""

    rows: slice  # of the batch's tokens
    table: Tensor  # its pages
    seen: Tensor | None  # [new tokens, request's tokens]: which each new token sees; None: all are new


class Single(NamedTuple):
    """Requests with one new token each."""

    rows: Tensor | None  # of the batch's tokens; None: all
    tables: Tensor  # [requests, pages]
    lengths: Tensor  # of the requests, with the new token


class Batch(NamedTuple):
    """What a model's forward takes: one entry for each new token, but `last` has one for each request."""

    ids: Tensor
    positions: Tensor
    slots: Tensor  # -1: padding, stored nowhere
    last: Tensor  # the row of each request's last token
    single: Single | None
    views: Sequence[View] = ()


def decode_batch(inputs: Tensor, page_size: int) -> Batch:
    """Describe one new token for each request, from nothing but tensors, so nothing waits for the device.

    Each row of `inputs` (int32) has a token, the request's length with it, and its pages. Length 0 is padding.
    """
    ids, lengths, tables = inputs[:, 0].contiguous(), inputs[:, 1], inputs[:, 2:]
    derived = metadata(1, lengths, 1)
    slots = _slots(tables, derived.request_index, derived.positions, page_size)
    slots = slots.masked_fill(derived.expanded == 0, -1)
    return Batch(ids, derived.positions, slots, derived.request_index, Single(None, tables, lengths))


def extend_batch(tokens: Sequence[Sequence[int]], starts: Sequence[int], tables: Tensor, page_size: int) -> Batch:
    """Describe the tokens from position `starts[i]` on of each request i, which reads no more pages than it needs."""
    counts = [len(new) for new in tokens]
    lengths = [start + count for start, count in zip(starts, counts, strict=True)]
    ids = torch.tensor([token for new in tokens for token in new], dtype=torch.int32).to(tables.device)
    both = torch.tensor([counts, lengths], dtype=torch.int32).to(tables.device)
    derived = metadata(both[0], both[1], 1, capacity=len(ids))
    slots = _slots(tables, derived.request_index, derived.positions, page_size)
    views, at = [], 0
    for row, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        if count > 1:
            rows, pages = slice(at, at + count), tables[row, : -(-length // page_size)]
            places = torch.arange(length, device=tables.device)
            seen = places <= derived.positions[rows, None] if length > count else None
            views.append(View(rows, pages, seen))
        at += count
    last = derived.cu_seqlens[1:] - 1
    ones = [row for row, count in enumerate(counts) if count == 1]
    index = torch.tensor(ones, dtype=torch.int64).to(tables.device)
    single = Single(last[index], tables[index], both[1][index]) if ones else None
    return Batch(ids, derived.positions, slots, last, single, views)


def _slots(tables: Tensor, requests: Tensor, positions: Tensor, page_size: int) -> Tensor:
    return tables[requests, positions // page_size] * page_size + positions % page_size


def attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: Batch) -> Tensor:
    """Return attention of each new token over its request's pages: [tokens, heads, head_dim], as q."""
    single, out = batch.single, torch.empty_like(q)
    if single is not None:
        queries = q if single.rows is None else q[single.rows]
        y = decode_attention(queries, k_cache, v_cache, single.tables, single.lengths, split_tokens=SPLIT_TOKENS)
        if single.rows is None:
            return y
        out[single.rows] = y
    for view in batch.views:
        out[view.rows] = _attend(q[view.rows], k_cache, v_cache, view)
    return out


def _attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, view: View) -> Tensor:
    k, v = (cache[view.table].flatten(0, 1).transpose(0, 1) for cache in (k_cache, v_cache))
    return _from_the_first(q, k, v) if view.seen is None else _masked(q, k, v, view.seen)


def _from_the_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend to a request whose tokens are all new."""
    k, v = (x[None, :, : len(q)] for x in (k, v))
    options: Any = {"is_causal": True, "enable_gqa": q.shape[1] != k.shape[1]}
    return F.scaled_dot_product_attention(q.transpose(0, 1)[None], k, v, **options)[0].transpose(0, 1)


def _masked(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Heads that share a KV head are more queries of it: K and V are not repeated.

    What is left in the last page by another request is cut off: it may be NaN, which a mask does not hide.
    """
    k, v = (x[:, : seen.shape[1]] for x in (k, v))
    grouped = q.unflatten(1, (len(k), -1)).permute(1, 2, 0, 3)  # KV head, sharing head, token, feature
    mask = seen.repeat(grouped.shape[1], 1)
    attended = F.scaled_dot_product_attention(grouped.flatten(1, 2)[None], k[None], v[None], attn_mask=mask)[0]
    whole: Tensor = attended.unflatten(1, grouped.shape[1:3]).permute(2, 0, 1, 3).reshape(q.shape)
    return whole
