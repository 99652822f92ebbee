"""Sequence parallel: between two blocks each rank keeps a part of the tokens.

Where the ranks do not divide the number of tokens, the first ranks have one token more (the v-variants); nothing is
padded.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from commlib.communicator import Communicator
from commlib.tp.shard import shard, sizes


def scatter_rows(comm: Communicator, x: Tensor) -> Tensor:
    """Add up all ranks' rows, and return those that this rank keeps."""
    rows: Tensor = scatter(comm, x)
    return rows


def gather_rows(comm: Communicator, rows: Tensor, out: Tensor) -> Tensor:
    """Put every rank's rows into `out`, which has all of them."""
    whole: Tensor = gather(comm, rows, out)
    return whole


def scatter(comm: Communicator, x: Tensor, out: Tensor | None = None, **how: Any) -> Any:
    """Do as scatter_rows, into `out` if there is one, with options of the call; return what the call does."""
    if out is None:
        out = x.new_empty(shard(len(x), comm.rank, comm.size).length, *x.shape[1:])
    if len(x) % comm.size == 0:
        return comm.reduce_scatter_tensor(out, x, **how)
    return comm.reduce_scatterv(out, x, sizes(len(x), comm.size, x[0].numel()), **how)


def gather(comm: Communicator, rows: Tensor, out: Tensor, **how: Any) -> Any:
    """Do as gather_rows, with options of the call; return what the call does."""
    if len(out) % comm.size == 0:
        return comm.all_gather_into_tensor(out, rows, **how)
    return comm.all_gatherv(out, rows, sizes(len(out), comm.size, out[0].numel()), **how)
