"""Sequence parallel: between two blocks each rank keeps a part of the tokens.

Where the ranks do not divide the number of tokens, the first ranks have one token more (the v-variants); nothing is
padded.
"""

from __future__ import annotations

from torch import Tensor

from commlib.communicator import Communicator
from commlib.tp.shard import shard, sizes


def scatter_rows(comm: Communicator, x: Tensor) -> Tensor:
    """Add up all ranks' rows, and return those that this rank keeps."""
    out = x.new_empty(shard(len(x), comm.rank, comm.size).length, *x.shape[1:])
    if len(x) % comm.size == 0:
        return comm.reduce_scatter_tensor(out, x)
    return comm.reduce_scatterv(out, x, sizes(len(x), comm.size, x[0].numel()))


def gather_rows(comm: Communicator, rows: Tensor, out: Tensor) -> Tensor:
    """Put every rank's rows into `out`, which has all of them."""
    if len(out) % comm.size == 0:
        return comm.all_gather_into_tensor(out, rows)
    return comm.all_gatherv(out, rows, sizes(len(out), comm.size, out[0].numel()))
