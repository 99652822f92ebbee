"""The new tokens of a batch: where each is in its request, in the cache, and what it sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from commlib.kernels import metadata


class View(NamedTuple):
    """Requests with equally many new tokens, which read their pages together."""

    rows: slice  # of the batch's tokens
    tables: Tensor  # [requests, pages]
    seen: Tensor  # [requests, 1, new tokens, pages * page_size]: which slots each new token sees


class Batch(NamedTuple):
    """What a model's forward takes: one entry for each new token, but `last` has one for each request."""

    ids: Tensor
    positions: Tensor
    slots: Tensor  # -1: padding, stored nowhere
    last: Tensor  # the row of each request's last token
    views: list[View]


def decode_batch(inputs: Tensor, page_size: int) -> Batch:
    """Describe one new token for each request, from tensors alone: nothing waits for the device.

    Each row of `inputs` (int32) has a token, the request's length with it, and its pages. Length 0 is padding.
    """
    ids, lengths, tables = inputs[:, 0].contiguous(), inputs[:, 1], inputs[:, 2:]
    found = metadata(1, lengths, 1)
    slots = _slots(tables, found.request_index, found.positions, page_size)
    slots = slots.masked_fill(found.expanded == 0, -1)
    view = View(slice(None), tables, _seen(found.positions[:, None], tables, page_size))
    return Batch(ids, found.positions, slots, found.request_index, [view])


def extend_batch(tokens: Sequence[Sequence[int]], starts: Sequence[int], tables: Tensor, page_size: int) -> Batch:
    """Describe the tokens from position `starts[i]` on of each request i, which reads no more pages than it needs."""
    counts = [len(own) for own in tokens]
    lengths = [start + count for start, count in zip(starts, counts, strict=True)]
    ids = torch.tensor([token for own in tokens for token in own], dtype=torch.int32).to(tables.device)
    both = torch.tensor([counts, lengths], dtype=torch.int32).to(tables.device)
    found = metadata(both[0], both[1], 1, capacity=len(ids))
    slots = _slots(tables, found.request_index, found.positions, page_size)
    views, at = [], 0
    for row, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        rows, pages = slice(at, at + count), tables[row : row + 1, : -(-length // page_size)]
        views.append(View(rows, pages, _seen(found.positions[None, rows], pages, page_size)))
        at += count
    return Batch(ids, found.positions, slots, found.cu_seqlens[1:] - 1, views)


def _slots(tables: Tensor, requests: Tensor, positions: Tensor, page_size: int) -> Tensor:
    return tables[requests, positions // page_size] * page_size + positions % page_size


def _seen(positions: Tensor, tables: Tensor, page_size: int) -> Tensor:
    """Return which slots of its request each token sees: its own and those before it."""
    places = torch.arange(tables.shape[1] * page_size, device=tables.device)
    return (places <= positions[:, :, None])[:, None]


def attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: Batch) -> Tensor:
    """Return attention of each new token over its request's pages: [tokens, heads, head_dim], as q."""
    return torch.cat([_attend(q[view.rows], k_cache, v_cache, view) for view in batch.views])


def _attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, view: View) -> Tensor:
    """Heads that share a KV head are more queries of it: K and V are not repeated."""
    requests, keys = len(view.tables), k_cache.shape[2]
    k, v = (cache[view.tables].flatten(1, 2).transpose(1, 2) for cache in (k_cache, v_cache))
    grouped = q.unflatten(0, (requests, -1)).unflatten(2, (keys, -1))  # request, token, KV head, sharing head, feature
    count, sharing = grouped.shape[1], grouped.shape[3]
    queries = grouped.permute(0, 2, 3, 1, 4).flatten(2, 3)
    found = F.scaled_dot_product_attention(queries, k, v, attn_mask=view.seen.repeat(1, 1, sharing, 1))
    whole: Tensor = found.unflatten(2, (sharing, count)).permute(0, 3, 1, 2, 4).reshape(q.shape)
    return whole
