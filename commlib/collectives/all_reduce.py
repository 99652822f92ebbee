"""all_reduce: every rank gets the reduction of every rank's tensor."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.distributed import AllreduceOptions

from commlib.backends.torch_dist import TorchBackend
from commlib.collectives import rows
from commlib.collectives.spec import Algorithm, Collective
from commlib.collectives.torch_calls import reduce_with, refuses_reduction


def torch_direct(backend: TorchBackend, x: torch.Tensor, redop: Any, out: torch.Tensor | None = None) -> torch.Tensor:
    result = x if out is None else out.copy_(x)
    reduce_with(backend, result, redop, AllreduceOptions(), partial(backend.group.allreduce, [result]))
    return result


ALL_REDUCE = Collective(
    name="all_reduce",
    reference=lambda call, inputs, fold: fold(inputs, call.redop),
    invoke=lambda comm, x, out, call: comm.all_reduce(x, call.redop, out=None if out is x else out),
    bus_factor=lambda n: 2 * (n - 1) / n,
    reduces=True,
    algorithms=(
        Algorithm("shm_oneshot", "shm", params=rows.CHUNKS, variants=rows.chunks),
        Algorithm("shm_twoshot", "shm", params=rows.CHUNKS, variants=rows.chunks),
        Algorithm("shm_symmetric", "shm", placement="symmetric"),
        Algorithm("nccl_direct", "nccl", ordered=False, refuses=rows.refuses_nccl),
        Algorithm("nccl_staged", "nccl", arena=True, ordered=False, refuses=rows.refuses_nccl),
        Algorithm("nccl_symmetric", "nccl", placement="symmetric", ordered=False, refuses=rows.refuses_nccl_symmetric),
        Algorithm("lsa_ll_oneshot", "nccl", kernel="all_reduce", params=rows.PACKETS, variants=rows.packets),
        Algorithm("lsa_ll128_oneshot", "nccl", kernel="all_reduce", params=rows.PACKETS, variants=rows.lines),
        rows.LINES_TWICE("lsa_ll128_twoshot", kernel="all_reduce"),
        rows.LAMPORT("lsa_lamport_oneshot", kernel="all_reduce", variants=rows.whole_packets),
        rows.LAMPORT("lsa_lamport_twoshot", kernel="all_reduce", variants=rows.two_phases_of_packets),
        Algorithm("lsa_oneshot", "nccl", kernel="all_reduce", params=rows.TILES, variants=rows.tiles),
        Algorithm("lsa_twoshot", "nccl", kernel="all_reduce", params=rows.TILES, variants=rows.tiles),
        rows.PIPED("lsa_pipe_twoshot", kernel="all_reduce"),
        Algorithm("torch_direct", "torch", ordered=False, run=torch_direct, refuses=refuses_reduction),
    ),
)
