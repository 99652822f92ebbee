"""index: row gather, also of a shard with a quarter of the ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from commlib.kernels.index import index
from commlib.tools.baselines.kernels.case import OURS, SEED, Candidate, Case, Inputs, rows_of, shared_rows, table
from commlib.tools.timing import Run

MASKED = "masked"
ROW_BLOCK, SPLIT_BLOCK = 8192, 1024  # elements of a Triton program: a row, and a part of one where rows are few
SHARDS = 4  # of the vocabulary; the second one is here


class Index(Case):
    """n ids that name rows; of masked ones a quarter is in the shard here."""

    kernel = "index"

    @property
    def rows_read(self) -> int:
        return -(-self.n // SHARDS) if self.variant == MASKED else self.n

    @property
    def num_bytes(self) -> int:
        """Rows read and rows written; the ids are too few to count."""
        return (self.rows_read + self.n) * self.row_bytes

    def inputs(self, sets: int, device: torch.device) -> Sequence[Gather]:
        weights = table(shared_rows(self.row_bytes, self.n, device), self.dim, self.dtype, device)
        ids = rows_of(self.pattern, sets, self.n, len(weights), device)
        if self.variant == MASKED:
            ids = self._sharded(ids, len(weights))
        # Clones: a slice would begin where its number says, and compilers have other code for odd addresses.
        return [Gather(self, weights, ids[at].clone(), at * self.n) for at in range(sets)]

    def _sharded(self, ids: Tensor, length: int) -> Tensor:
        """Move a quarter of each set's ids into the second shard, the others into those that are elsewhere."""
        draw = torch.Generator(ids.device).manual_seed(SEED)
        elsewhere = torch.randint(2 * length, SHARDS * length, ids.shape, generator=draw, device=ids.device)
        order = torch.rand(ids.shape, generator=draw, device=ids.device).argsort(1)
        return torch.where(order < self.rows_read, ids + length, elsewhere)

    def candidates(self) -> list[Candidate]:
        block = 1 << max(self.dim - 1, 0).bit_length()  # Triton wants a power of two
        return [
            Candidate("commlib", Gather.ours, OURS),
            Candidate.copy(),
            *(_masked_by_torch() if self.variant else _by_torch()),
            Candidate.triton("triton row", lambda code, inputs: code.gathering(inputs, min(block, ROW_BLOCK))),
            *[Candidate.triton("triton split", lambda code, inputs: code.gathering(inputs, SPLIT_BLOCK))]
            * (block > SPLIT_BLOCK),
        ]


class Gather(Inputs):
    """A table, ids and the rows they name; `vocab_range` is (start, length) of a shard, or None."""

    def __init__(self, case: Index, weights: Tensor, ids: Tensor, first: int) -> None:
        self.weights, self.ids = weights, ids
        self.vocab_range = (len(weights), len(weights)) if case.variant == MASKED else None
        self.out = torch.empty(len(ids), case.dim, dtype=weights.dtype, device=weights.device)
        self.outputs = [self.out]
        self.start, self.length = self.vocab_range or (0, len(weights))
        # As many bytes as the call moves: rows that are read, rows that are written.
        half = (case.rows_read + len(ids)) * case.dim // 2
        begin = first % (len(weights) - len(ids) + 1) * case.dim
        self.source, self.target = weights.view(-1)[begin : begin + half], self.out.view(-1)[:half]

    def expected(self) -> list[Tensor]:
        local = self.ids - self.start
        here = (local >= 0) & (local < self.length)
        rows = self.weights[local.clamp(0, self.length - 1)]
        rows[~here] = 0
        return [rows]

    def ours(self) -> Run:
        ours = partial(index, self.weights, self.ids, out=self.out)
        return ours if self.vocab_range is None else partial(ours, vocab_range=self.vocab_range)


def _by_torch() -> list[Candidate]:
    return [
        Candidate("torch index_select", lambda i: partial(torch.index_select, i.weights, 0, i.ids, out=i.out)),
        Candidate.allocating("torch embedding", F.embedding, lambda i: (i.ids, i.weights)),
        Candidate.compiled(_take, lambda i: (i.out, i.weights, i.ids)),
    ]


def _masked_by_torch() -> list[Candidate]:
    return [
        Candidate.allocating("torch masked", _masked, lambda i: (i.weights, i.ids, i.start, i.length)),
        Candidate.compiled(_masked_out, lambda i: (i.out, i.weights, i.ids, i.start, i.length)),
    ]


def _take(out: Tensor, weights: Tensor, ids: Tensor) -> None:
    out.copy_(weights[ids])


def _masked(weights: Tensor, ids: Tensor, start: int, length: int) -> Tensor:
    """Make the eager operations of a vocabulary-parallel embedding."""
    local = ids - start
    elsewhere = (local < 0) | (local >= length)
    rows = F.embedding(local.masked_fill_(elsewhere, 0), weights)
    return rows.masked_fill_(elsewhere.unsqueeze(-1), 0)


def _masked_out(out: Tensor, weights: Tensor, ids: Tensor, start: int, length: int) -> None:
    local = ids - start
    here = (local >= 0) & (local < length)
    out.copy_(torch.where(here.unsqueeze(-1), weights[torch.where(here, local, 0)], 0))
