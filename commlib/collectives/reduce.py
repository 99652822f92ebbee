"""reduce: the root gets the reduction of every rank's tensor; the others' tensors stay as they are."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.distributed import ReduceOptions

from commlib.backends.torch_dist import TorchBackend
from commlib.collectives import rows
from commlib.collectives.spec import Algorithm, Collective
from commlib.collectives.torch_calls import reduce_with, refuses_reduction


def torch_direct(backend: TorchBackend, out: torch.Tensor | None, x: torch.Tensor, dst: int, redop: Any) -> None:
    """Call the process group's reduce on a copy: engines may scribble on the tensors of non-roots."""
    if x.numel() == 0:
        return
    work = x.clone()
    options = backend.options(ReduceOptions(), rootRank=dst)
    reduce_with(backend, work, redop, options, partial(backend.group.reduce, [work]))
    if backend.rank == dst:
        (x if out is None else out).copy_(work)


REDUCE = Collective(
    name="reduce",
    reference=lambda call, inputs, fold: fold(inputs, call.redop) if call.rank == call.root else None,
    invoke=lambda comm, x, out, call: comm.reduce(x, call.root, call.redop, out=None if out is x else out),
    bus_factor=lambda n: 1.0,
    reduces=True,
    rooted=True,
    algorithms=(
        Algorithm("shm_oneshot", "shm", params=rows.CHUNKS, variants=rows.chunks),
        Algorithm("nccl_direct", "nccl", ordered=False, refuses=rows.refuses_nccl),
        rows.LINES_REDUCE,
        rows.PIPES_REDUCE,
        Algorithm("torch_direct", "torch", ordered=False, run=torch_direct, refuses=refuses_reduction),
    ),
)
