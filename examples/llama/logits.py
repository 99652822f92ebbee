"""Logits of a divided vocabulary: all of them on every rank, or the next tokens without gathering them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from commlib.communicator import Communicator
from commlib.tp.shard import shard, sizes

_WORD = 0xFFFFFFFF
COLDEST = 1e-30  # below, logits divided by a temperature would be infinite, the best no larger than others


class Sampling(NamedTuple):
    """How the next token of each row is drawn: tensors of one element per row, the same on all ranks."""

    temperature: Tensor  # float32; 0 takes the best
    top_k: Tensor  # int64; 0 draws from all
    seed: Tensor  # int64
    position: Tensor  # int64: where in its sequence the token will be
    max_top_k: int


def gather_logits(comm: Communicator, local: Tensor, vocab_size: int) -> Tensor:
    """Return the logits of the whole vocabulary, [rows, vocab_size], on every rank."""
    whole = local.new_empty(vocab_size, len(local))
    comm.all_gatherv(whole, local.t().contiguous(), sizes(vocab_size, comm.size, len(local)))
    return whole.t()


def greedy(comm: Communicator, local: Tensor, vocab_size: int) -> Tensor:
    """Return the id of each row's largest logit, the lowest among equals: ranks exchange 16 bytes for each row."""
    value, at = local.max(-1)
    best = torch.stack([value.double(), (at + shard(vocab_size, comm.rank, comm.size).start).double()])
    every = best.new_empty(comm.size, *best.shape)
    comm.all_gather_into_tensor(every, best)  # shards are in the order of ids: the first of equals is the lowest
    winner = every[:, 0].argmax(0, keepdim=True)
    return every[:, 1].gather(0, winner)[0].long()


def sample(comm: Communicator, local: Tensor, vocab_size: int, how: Sampling) -> Tensor:
    """Return an id for each row, drawn from its softmax; a row's id depends only on its logits, seed and position.

    Each rank adds Gumbel noise to its logits; the largest sum of all is then a draw (the Gumbel-max trick). The noise
    of an id is computed from (seed, position, id), so it is the same however the vocabulary is divided.
    """
    part = shard(vocab_size, comm.rank, comm.size)
    drawn = (how.temperature > 0)[:, None]
    scores = local.float() / torch.where(drawn, how.temperature[:, None].clamp(min=COLDEST), 1.0)
    if how.max_top_k:
        scores = scores.masked_fill(scores < _kth_best(comm, scores, vocab_size, how), -torch.inf)
    ids = torch.arange(part.start, part.start + part.length, device=local.device)
    return greedy(comm, torch.where(drawn, scores + gumbel(how.seed, how.position, ids), scores), vocab_size)


def _kth_best(comm: Communicator, scores: Tensor, vocab_size: int, how: Sampling) -> Tensor:
    """Return the score that a row's ids must reach; no id that equals the k-th best is dropped."""
    limit = min(how.max_top_k, vocab_size)
    best = scores.new_full((len(scores), limit), -torch.inf)
    count = min(limit, scores.shape[1])
    best[:, :count] = scores.topk(count).values
    every = best.new_empty(comm.size, *best.shape)
    comm.all_gather_into_tensor(every, best)
    ranked = every.transpose(0, 1).flatten(1).sort(descending=True).values
    kth = ranked.gather(1, (how.top_k.clamp(1, limit) - 1)[:, None])
    return torch.where(how.top_k[:, None] > 0, kth, -torch.inf)


def gumbel(seed: Tensor, position: Tensor, ids: Tensor) -> Tensor:
    """Return noise of the standard Gumbel distribution, [rows, ids], from a hash of (seed, position, id)."""
    row = _mixed(_mixed(seed & _WORD) ^ (position & _WORD))
    word = _mixed(row[:, None] ^ _mixed(ids + 1)[None])
    uniform = ((word >> 9).float() + 0.5) / (1 << 23)  # between 0 and 1, neither included
    return -(-uniform.log()).log()


def _mixed(x: Tensor) -> Tensor:
    """Return 32-bit numbers whose bits depend on all bits of x (the constants are of lowbias32, by Chris Wellons)."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD & _WORD
    x = (x ^ (x >> 15)) * 0x735A2D97 & _WORD
    return x ^ (x >> 15)
