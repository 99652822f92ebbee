"""index: row gather, also of a shard with a quarter of the ids, beside torch and Triton."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from commlib.kernels.index import index
from commlib.tools.baselines.kernels import triton
from commlib.tools.baselines.kernels.case import OURS, Candidate, Case, Compiled, Inputs, allocating, copy
from commlib.tools.baselines.kernels.sets import SEED, rows_of, shared_rows, table
from commlib.tools.timing import Run

MASKED = "masked"
SHARDS = 4  # of the vocabulary; the second one is here


class Gather(Inputs):
    """A table, ids and the rows they name; `vocab_range` is (start, length) of a shard, or None."""

    def __init__(self, weights: Tensor, ids: Tensor, vocab_range: tuple[int, int] | None, first: int) -> None:
        self.weights, self.ids, self.vocab_range = weights, ids, vocab_range
        self.out = torch.empty(len(ids), weights.shape[1], dtype=weights.dtype, device=weights.device)
        self.outputs = [self.out]
        self.start, self.length = vocab_range or (0, len(weights))
        # As many bytes as the call moves: rows that are read, rows that are written.
        half = (_hits(len(ids), vocab_range is not None) + len(ids)) * weights.shape[1] // 2
        begin = first % (len(weights) - len(ids) + 1) * weights.shape[1]
        self.source, self.target = weights.view(-1)[begin : begin + half], self.out.view(-1)[:half]

    def expected(self) -> list[Tensor]:
        """Look up with torch."""
        local = self.ids - self.start
        here = (local >= 0) & (local < self.length)
        rows = self.weights[local.clamp(0, self.length - 1)]
        rows[~here] = 0
        return [rows]


def num_bytes(case: Case) -> int:
    """Count rows read and rows written; the ids are too few to count."""
    return (_hits(case.n, case.variant == MASKED) + case.n) * case.row_bytes


def inputs(case: Case, sets: int, device: torch.device) -> Sequence[Gather]:
    """Return sets with one table, and ids and rows of their own."""
    weights = table(shared_rows(case.row_bytes, case.n, device), case.dim, case.dtype, device)
    masked = case.variant == MASKED
    ids = rows_of(case.pattern, sets, case.n, len(weights), device)
    shard = (len(weights), len(weights)) if masked else None
    if masked:
        ids = _sharded(ids, len(weights))
    # Clones: a slice would begin where its number says, and compilers have other code for odd addresses.
    return [Gather(weights, ids[at].clone(), shard, at * case.n) for at in range(sets)]


def candidates(case: Case, compiled: Compiled) -> list[Candidate]:
    """Return the gather of each library; in a shard, what it takes of them to make one."""
    if case.variant == MASKED:
        peers = [
            allocating("torch masked", _torch_masked, lambda i: (i.weights, i.ids, i.start, i.length)),
            compiled(_masked, lambda i: (i.out, i.weights, i.ids, i.start, i.length)),
        ]
    else:
        peers = [
            Candidate("torch index_select", lambda i: partial(torch.index_select, i.weights, 0, i.ids, out=i.out)),
            allocating("torch embedding", functional.embedding, lambda i: (i.ids, i.weights)),
            compiled(_plain, lambda i: (i.out, i.weights, i.ids)),
        ]
    return [Candidate("commlib", _ours, OURS), copy(), *peers, *triton.gathers(case)]


def _hits(n: int, masked: bool) -> int:
    return -(-n // SHARDS) if masked else n


def _sharded(ids: Tensor, length: int) -> Tensor:
    """Move a quarter of each set's ids into the second shard, the others into those that are elsewhere."""
    draw = torch.Generator(ids.device).manual_seed(SEED)
    here = ids + length
    elsewhere = torch.randint(2 * length, SHARDS * length, ids.shape, generator=draw, device=ids.device)
    order = torch.rand(ids.shape, generator=draw, device=ids.device).argsort(1)
    return torch.where(order < _hits(ids.shape[1], True), here, elsewhere)


def _ours(inputs: Gather) -> Run:
    ours = partial(index, inputs.weights, inputs.ids, out=inputs.out)
    return ours if inputs.vocab_range is None else partial(ours, vocab_range=inputs.vocab_range)


def _torch_masked(weights: Tensor, ids: Tensor, start: int, length: int) -> Tensor:
    """Make the eager operations of a vocabulary-parallel embedding."""
    local = ids - start
    elsewhere = (local < 0) | (local >= length)
    rows = functional.embedding(local.masked_fill_(elsewhere, 0), weights)
    return rows.masked_fill_(elsewhere.unsqueeze(-1), 0)


def _plain(out: Tensor, weights: Tensor, ids: Tensor) -> None:
    out.copy_(weights[ids])


def _masked(out: Tensor, weights: Tensor, ids: Tensor, start: int, length: int) -> None:
    local = ids - start
    here = (local >= 0) & (local < length)
    out.copy_(torch.where(here.unsqueeze(-1), weights[torch.where(here, local, 0)], 0))
