"""all_reduce: every rank gets the reduction of every rank's tensor."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.distributed import AllreduceOptions

from commlib.backends.torch_dist import TorchBackend
from commlib.collectives.hier_calls import (
    complete,
    doubling,
    fold,
    gather,
    hosts_of,
    inside,
    refuses_narrow,
    shares,
    swap,
    two_exchanges,
)
from commlib.collectives.nccl_calls import (
    refuses_before_hopper,
    refuses_lamport,
    refuses_nccl,
    refuses_nccl_symmetric,
)
from commlib.collectives.params import CHUNKS, PACKETS, PIPES, TILES
from commlib.collectives.spec import Algorithm, Collective
from commlib.collectives.torch_calls import reduce_with, refuses_reduction
from commlib.collectives.variants import (
    chunks,
    lines,
    packets,
    pipes,
    tiles,
    two_phases_of_lines,
    two_phases_of_packets,
    whole_packets,
)
from commlib.redops import redop_name


def torch_direct(backend: TorchBackend, x: torch.Tensor, redop: Any, out: torch.Tensor | None = None) -> torch.Tensor:
    """Call the process group's all_reduce."""
    result = x if out is None else out.copy_(x)
    reduce_with(backend, result, redop, AllreduceOptions(), partial(backend.group.allreduce, [result]))
    return result


def hier_oneshot(backend: TorchBackend, x: torch.Tensor, redop: Any, out: torch.Tensor | None = None) -> torch.Tensor:
    """Reduce on each host; one rank of each gathers the hosts' parts and reduces them; give it to the others."""
    result, hosts, name = x if out is None else out, hosts_of(backend), redop_name(redop)
    if x.numel() > 0:
        part = torch.empty_like(x) if hosts.local == 0 else None
        hosts.calls.reduce(part, x, 0, inside(name))
        if part is not None:
            parts = gather(backend, part.view(-1), [members[0] for members in hosts.ranks], "all_reduce")
            result.view(-1).copy_(fold(parts, name, backend.size))
        hosts.calls.broadcast(result, 0)
    return result


def hier_twoshot(backend: TorchBackend, x: torch.Tensor, redop: Any, out: torch.Tensor | None = None) -> torch.Tensor:
    """Scatter the reduction on each host to its lanes; each reduces a piece between hosts, and all are gathered."""
    result, hosts, name = x if out is None else out, hosts_of(backend), redop_name(redop)
    if x.numel() > 0:
        sizes = shares(x.numel(), hosts.lanes, len(hosts.own))
        mine, count = sizes[hosts.local], len(hosts.ranks)
        piece = -(-mine // count)
        rows = hosts.scratch("room", count * piece, x).view(count, piece)
        hosts.calls.reduce_scatterv(rows.view(-1)[:mine], x.view(-1), sizes, inside(name))
        if mine:
            rows[hosts.here] = fold(swap(backend, rows, "all_reduce"), name, backend.size)
            complete(backend, rows, "all_reduce")
        hosts.calls.all_gatherv(result.view(-1), rows.view(-1)[:mine], sizes)
    return result


_lamport = partial(Algorithm, backend="nccl", kernel="all_reduce", refuses=refuses_lamport, params=PACKETS)

ALL_REDUCE = Collective(
    name="all_reduce",
    shapes=lambda call: (call.count, call.count),
    reference=lambda call, inputs, fold: fold(inputs, call.redop),
    invoke=lambda comm, x, out, call: comm.all_reduce(x, call.redop, out=None if out is x else out),
    size_count=lambda call: call.count,
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
        Algorithm(
            "hier_oneshot",
            "torch",
            hosts=True,
            ordered=False,
            run=hier_oneshot,
            refuses=refuses_narrow,
            link=doubling,
        ),
        Algorithm(
            "hier_twoshot",
            "torch",
            hosts=True,
            ordered=False,
            run=hier_twoshot,
            refuses=refuses_narrow,
            link=two_exchanges,
        ),
    ),
)
