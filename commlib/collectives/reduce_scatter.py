"""reduce_scatter: rank r gets block r of the reduction; reduce_scatterv: blocks of different sizes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.distributed import AllreduceOptions, ReduceScatterOptions

from commlib.backends.torch_dist import TorchBackend
from commlib.collectives import rows
from commlib.collectives.all_gather import block_of, ragged
from commlib.collectives.spec import Algorithm, Collective
from commlib.collectives.torch_calls import reduce_with, refuses_reduction


def torch_direct(backend: TorchBackend, out: torch.Tensor, x: torch.Tensor, *arguments: Any) -> None:
    """Call the process group's reduce_scatter_tensor, or reduce and cut where blocks differ."""
    *sizes, redop = arguments
    if x.numel() == 0:
        return
    # Some engines use the input as scratch, and out may be a part of it.
    source = x.clone().view(-1)
    if sizes:
        reduce_with(backend, source, redop, AllreduceOptions(), partial(backend.group.allreduce, [source]))
        result = block_of(source, sizes[0], backend.rank)
    else:
        result = torch.empty_like(out).view(-1)
        start = partial(backend.group._reduce_scatter_base, result, source)
        reduce_with(backend, result, redop, ReduceScatterOptions(), start)
    out.view(-1).copy_(result)


_ALGORITHMS = (
    Algorithm("shm_oneshot", "shm", params=rows.CHUNKS, variants=rows.chunks),
    Algorithm("shm_symmetric", "shm", placement="symmetric"),
    Algorithm("nccl_direct", "nccl", ordered=False, refuses=rows.refuses_nccl),
    Algorithm("torch_direct", "torch", ordered=False, run=torch_direct, refuses=refuses_reduction),
)

REDUCE_SCATTER = Collective(
    name="reduce_scatter",
    shapes=lambda call: (call.count * call.size, call.count),
    reference=lambda call, inputs, fold: fold([call.block(x) for x in inputs], call.redop),
    invoke=lambda comm, x, out, call: comm.reduce_scatter_tensor(out, x, call.redop),
    reduces=True,
    algorithms=(
        *_ALGORITHMS,
        Algorithm("nccl_staged", "nccl", arena=True, ordered=False, refuses=rows.refuses_nccl),
        Algorithm("nccl_symmetric", "nccl", placement="symmetric", ordered=False, refuses=rows.refuses_nccl_symmetric),
        Algorithm("lsa_ll_oneshot", "nccl", kernel="reduce_scatter", params=rows.PACKETS, variants=rows.packets),
        Algorithm("lsa_ll128_oneshot", "nccl", kernel="reduce_scatter", params=rows.PACKETS, variants=rows.lines),
        rows.LAMPORT("lsa_lamport_oneshot", kernel="reduce_scatter", variants=rows.whole_packets),
        Algorithm("lsa_oneshot", "nccl", kernel="reduce_scatter", params=rows.TILES, variants=rows.tiles),
        rows.PIPES_REDUCE,
    ),
)


REDUCE_SCATTERV = Collective(
    name="reduce_scatterv",
    shapes=lambda call: (sum(ragged(call)), ragged(call)[call.rank]),
    reference=lambda call, inputs, fold: fold([block_of(x, ragged(call), call.rank) for x in inputs], call.redop),
    invoke=lambda comm, x, out, call: comm.reduce_scatterv(out, x, ragged(call), call.redop),
    reduces=True,
    algorithms=(*_ALGORITHMS, rows.LINES_REDUCE, rows.PIPES_REDUCE),
)
