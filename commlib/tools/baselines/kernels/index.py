"""index: row gather, also of a shard with a quarter of the ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from commlib.kernels.index import index
from commlib.tools.baselines.kernels.case import OURS, SEED, Candidate, Case, Inputs, copy, rows_of, shared_rows, table
from commlib.tools.timing import Run

MASKED = "masked"
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
        return [Candidate("commlib", Gather.ours, OURS), copy()]


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
