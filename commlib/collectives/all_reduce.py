"""all_reduce: every rank gets the reduction of every rank's tensor."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.distributed import AllreduceOptions

from commlib.backends.torch_dist import TorchBackend
from commlib.collectives.rows import (
    CHUNKS,
    PACKETS,
    PIPES,
    TILES,
    chunks,
    lines,
    packets,
    pipes,
    refuses_before_hopper,
    refuses_lamport,
    refuses_nccl,
    refuses_nccl_symmetric,
    tiles,
    two_phases_of_lines,
    two_phases_of_packets,
    whole_packets,
)
from commlib.collectives.spec import Algorithm, Collective
from commlib.collectives.torch_calls import reduce_with, refuses_reduction


def torch_direct(backend: TorchBackend, x: torch.Tensor, redop: Any, out: torch.Tensor | None = None) -> torch.Tensor:
    result = x if out is None else out.copy_(x)
    reduce_with(backend, result, redop, AllreduceOptions(), partial(backend.group.allreduce, [result]))
    return result


_lamport = partial(Algorithm, backend="nccl", kernel="all_reduce", refuses=refuses_lamport, params=PACKETS)

ALL_REDUCE = Collective(
    name="all_reduce",
    reference=lambda call, inputs, fold: fold(inputs, call.redop),
    invoke=lambda comm, x, out, call: comm.all_reduce(x, call.redop, out=None if out is x else out),
    bus_factor=lambda n: 2 * (n - 1) / n,
    reduces=True,
    in_place=lambda call, whole: (whole, whole),
    algorithms=(
        Algorithm("shm_oneshot", "shm", params=CHUNKS, variants=chunks),
        Algorithm("shm_twoshot", "shm", params=CHUNKS, variants=chunks),
        Algorithm("shm_symmetric", "shm", placement="symmetric"),
        Algorithm("nccl_direct", "nccl", ordered=False, refuses=refuses_nccl),
        Algorithm("nccl_staged", "nccl", arena=True, ordered=False, refuses=refuses_nccl),
        Algorithm("nccl_symmetric", "nccl", placement="symmetric", ordered=False, refuses=refuses_nccl_symmetric),
        Algorithm("lsa_ll_oneshot", "nccl", kernel="all_reduce", params=PACKETS, variants=packets),
        Algorithm("lsa_ll128_oneshot", "nccl", kernel="all_reduce", params=PACKETS, variants=lines),
        Algorithm("lsa_ll128_twoshot", "nccl", kernel="all_reduce", params=PACKETS, variants=two_phases_of_lines),
        _lamport("lsa_lamport_oneshot", variants=whole_packets),
        _lamport("lsa_lamport_twoshot", variants=two_phases_of_packets),
        Algorithm("lsa_oneshot", "nccl", kernel="all_reduce", params=TILES, variants=tiles),
        Algorithm("lsa_twoshot", "nccl", kernel="all_reduce", params=TILES, variants=tiles),
        Algorithm(
            "lsa_pipe_twoshot",
            "nccl",
            kernel="all_reduce",
            refuses=refuses_before_hopper,
            params=PIPES,
            variants=pipes,
        ),
        Algorithm("torch_direct", "torch", ordered=False, run=torch_direct, refuses=refuses_reduction),
    ),
)
