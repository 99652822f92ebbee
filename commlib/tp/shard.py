"""Shards: which part of a dimension a rank holds; and sequence parallel: each rank keeps a part of the tokens.

Where the ranks do not divide a number, the first ranks have one more (the v-variants); nothing is padded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from commlib.communicator import Communicator
from commlib.counts import counted


class Shard(NamedTuple):
    """A rank's part of a dimension of `total` elements."""

    start: int
    length: int
    total: int

    def times(self, unit: int) -> Shard:
        """Return the same part counted in smaller elements: heads as features."""
        return Shard(self.start * unit, self.length * unit, self.total * unit)


def shard(total: int, rank: int, size: int) -> Shard:
    """Return a rank's part; where the total does not divide, the first ranks have one element more."""
    each, more = total // size, total % size  # no divmod(): torch.compile traces none of a number of tokens
    return Shard(rank * each + min(rank, more), each + (rank < more), total)


def sizes(total: int, size: int, width: int = 1) -> list[int]:
    """Return the elements that each rank's part has, in rows of `width`: what the v-variants take."""
    return [shard(total, rank, size).length * width for rank in range(size)]


def heads(queries: int, keys: int, rank: int, size: int) -> tuple[Shard, Shard]:
    """Return a rank's query heads and the KV heads that these read.

    With fewer KV heads than ranks, neighbouring ranks hold copies of one KV head.
    """
    if queries % keys:
        raise ValueError(
            f"{counted(queries, 'query head')} cannot share {keys} KV heads evenly; one must be a multiple of the other"
        )
    if keys >= size:
        part = shard(keys, rank, size)
        return part.times(queries // keys), part
    if size % keys or queries % size:
        raise ValueError(
            f"{counted(queries, 'query head')} with {counted(keys, 'KV head')} cannot be divided over {size} ranks: "
            "with fewer KV heads than ranks, the ranks must be a multiple of the KV heads and divide the query heads"
        )
    return shard(queries, rank, size), Shard(rank * keys // size, 1, keys)


def scatter_rows(comm: Communicator, x: Tensor, out: Tensor | None = None, **how: Any) -> Any:
    """Add up all ranks' rows, and return those that this rank keeps; `how` has `async_op` and `max_sms` of the call."""
    if out is None:
        out = x.new_empty(shard(len(x), comm.rank, comm.size).length, *x.shape[1:])
    if len(x) % comm.size == 0:
        return comm.reduce_scatter_tensor(out, x, **how)
    return comm.reduce_scatterv(out, x, sizes(len(x), comm.size, x[0].numel()), **how)


def gather_rows(comm: Communicator, rows: Tensor, out: Tensor, **how: Any) -> Any:
    """Put every rank's rows into `out`, which has all of them; `how` has `async_op` and `max_sms` of the call."""
    if len(out) % comm.size == 0:
        return comm.all_gather_into_tensor(out, rows, **how)
    return comm.all_gatherv(out, rows, sizes(len(out), comm.size, out[0].numel()), **how)
