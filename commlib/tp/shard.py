"""Shards: which part of a dimension a rank holds."""

from __future__ import annotations

from typing import NamedTuple

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
