"""reduce_scatter: rank r gets block r of the reduction; reduce_scatterv: blocks of different sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from commlib.collectives.all_gather import ragged
from commlib.collectives.nccl_calls import refuses_nccl, refuses_nccl_symmetric
from commlib.collectives.params import CHUNKS, PACKETS, STREAMS
from commlib.collectives.spec import Algorithm, Collective
from commlib.collectives.torch_calls import reduce_with, refuses_reduction
from commlib.collectives.variants import chunks, lines, packets, streams

if TYPE_CHECKING:
    from commlib.backends.torch_dist import TorchBackend


def torch_direct(backend: TorchBackend, out: torch.Tensor, x: torch.Tensor, *arguments: tuple[int, ...] | int) -> None:
    """Call the process group's reduce_scatter_tensor, or reduce and cut where blocks differ."""
    *sizes, redop = arguments
    assert isinstance(redop, int)
    if x.numel() == 0:
        return
    if sizes:
        whole = x.clone()
        group = backend.group
        reduce_with(backend, whole, redop, lambda op: group.allreduce([whole], backend.all_reduce_options(op)))
        assert isinstance(sizes[0], tuple)
        first = sum(sizes[0][: backend.rank])
        out.view(-1).copy_(whole.view(-1)[first : first + out.numel()])
        return
    # Some engines use the input as scratch, and out may be a part of it.
    source, result = x.clone().view(-1), torch.empty_like(out).view(-1)
    options = backend.reduce_scatter_options
    reduce_with(backend, result, redop, lambda op: backend.group._reduce_scatter_base(result, source, options(op)))
    out.view(-1).copy_(result)


_ALGORITHMS = (
    Algorithm("shm_oneshot", "shm", params=CHUNKS, variants=chunks),
    Algorithm("shm_symmetric", "shm", placement="symmetric"),
    Algorithm("nccl_direct", "nccl", ordered=False, refuses=refuses_nccl),
    Algorithm("torch_direct", "torch", ordered=False, run=torch_direct, refuses=refuses_reduction),
)

REDUCE_SCATTER = Collective(
    name="reduce_scatter",
    shapes=lambda call: (call.count * call.size, call.count),
    reference=lambda call, inputs, fold: fold(
        [x[call.rank * call.count : (call.rank + 1) * call.count] for x in inputs], call.redop
    ),
    invoke=lambda comm, x, out, call: comm.reduce_scatter_tensor(out, x, call.redop),
    size_count=lambda call: call.count * call.size,
    bus_factor=lambda n: (n - 1) / n,
    reduces=True,
    in_place=lambda call, whole: (whole, whole[call.rank * call.count : (call.rank + 1) * call.count]),
    algorithms=(
        *_ALGORITHMS,
        Algorithm("nccl_staged", "nccl", arena=True, ordered=False, refuses=refuses_nccl),
        Algorithm("nccl_symmetric", "nccl", placement="symmetric", ordered=False, refuses=refuses_nccl_symmetric),
        Algorithm("lsa_ll_oneshot", "nccl", kernel="reduce_scatter", params=PACKETS, variants=packets),
        Algorithm("lsa_ll128_oneshot", "nccl", kernel="reduce_scatter", params=PACKETS, variants=lines),
        Algorithm("lsa_oneshot", "nccl", kernel="reduce_scatter", params=STREAMS, variants=streams),
    ),
)


def _block(whole: torch.Tensor, sizes: tuple[int, ...], rank: int) -> torch.Tensor:
    return whole[sum(sizes[:rank]) : sum(sizes[: rank + 1])]


REDUCE_SCATTERV = Collective(
    name="reduce_scatterv",
    shapes=lambda call: (sum(ragged(call)), ragged(call)[call.rank]),
    reference=lambda call, inputs, fold: fold([_block(x, ragged(call), call.rank) for x in inputs], call.redop),
    invoke=lambda comm, x, out, call: comm.reduce_scatterv(out, x, ragged(call), call.redop),
    size_count=lambda call: sum(ragged(call)),
    bus_factor=lambda n: (n - 1) / n,
    reduces=True,
    in_place=lambda call, whole: (whole, _block(whole, ragged(call), call.rank)),
    algorithms=(*_ALGORITHMS, Algorithm("lsa_ll128_exchange", "nccl", kernel="reduce", params=PACKETS, variants=lines)),
)
