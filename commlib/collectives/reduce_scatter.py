"""reduce_scatter: rank r gets block r of the reduction; reduce_scatterv: blocks of different sizes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.distributed import AllreduceOptions, ReduceScatterOptions

from commlib.backends.torch_dist import TorchBackend
from commlib.collectives.all_gather import block_of, ragged
from commlib.collectives.exchanges import LINES_REDUCE, PIPES_REDUCE
from commlib.collectives.hier_calls import (
    Sections,
    fold,
    hosts_of,
    inside,
    one_exchange,
    refuses_narrow,
    room,
    share_of,
)
from commlib.collectives.nccl_calls import refuses_lamport, refuses_nccl, refuses_nccl_symmetric
from commlib.collectives.params import CHUNKS, PACKETS, TILES
from commlib.collectives.spec import Algorithm, Collective
from commlib.collectives.torch_calls import reduce_with, refuses_reduction
from commlib.collectives.variants import chunks, lines, packets, tiles, whole_packets
from commlib.redops import redop_name


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


def hier_oneshot(backend: TorchBackend, out: torch.Tensor, x: torch.Tensor, *arguments: Any) -> None:
    """Scatter each host's section, reduced on this host, to the lanes; exchange these between hosts and reduce them."""
    *sizes, redop = arguments
    if x.numel() == 0:
        return
    hosts, name = hosts_of(backend), redop_name(redop)
    sections = Sections(hosts, sizes[0] if sizes else [out.numel()] * backend.size)
    cuts = [sections.cut(host) for host in range(len(hosts.ranks))]
    shares = room(hosts, [cut[hosts.local] for cut in cuts], x)
    for section, share, cut in zip(sections.filled(x.view(-1)), shares, cuts, strict=True):
        hosts.calls.reduce_scatterv(share, section, cut, inside(name))
    count, mine = len(hosts.ranks), cuts[hosts.here][hosts.local]
    came = hosts.scratch("came", count * mine, x).view(count, mine)
    came[hosts.here] = shares[hosts.here]
    to = [(peer, shares[host]) for host, peer in hosts.others]
    backend.exchange("reduce_scatter", to, [(peer, came[host]) for host, peer in hosts.others])
    result = fold(came, name, backend.size)
    if not hosts.even:
        whole = x.new_empty(sum(cuts[hosts.here]))
        hosts.calls.all_gatherv(whole, result, cuts[hosts.here])
        result = share_of(whole, sections.of(hosts.here), hosts.local)
    out.view(-1).copy_(result)


_ALGORITHMS = (
    Algorithm("shm_oneshot", "shm", params=CHUNKS, variants=chunks),
    Algorithm("shm_symmetric", "shm", placement="symmetric"),
    Algorithm("nccl_direct", "nccl", ordered=False, refuses=refuses_nccl),
    Algorithm("torch_direct", "torch", ordered=False, run=torch_direct, refuses=refuses_reduction),
    Algorithm(
        "hier_oneshot",
        "torch",
        hosts=True,
        ordered=False,
        run=hier_oneshot,
        refuses=refuses_narrow,
        link=one_exchange,
    ),
)

REDUCE_SCATTER = Collective(
    name="reduce_scatter",
    shapes=lambda call: (call.count * call.size, call.count),
    reference=lambda call, inputs, fold: fold([call.block(x) for x in inputs], call.redop),
    invoke=lambda comm, x, out, call: comm.reduce_scatter_tensor(out, x, call.redop),
    size_count=lambda call: call.count * call.size,
    bus_factor=lambda n: (n - 1) / n,
    reduces=True,
    in_place=lambda call, whole: (whole, call.block(whole)),
    algorithms=(
        *_ALGORITHMS,
        Algorithm("nccl_staged", "nccl", arena=True, ordered=False, refuses=refuses_nccl),
        Algorithm("nccl_symmetric", "nccl", placement="symmetric", ordered=False, refuses=refuses_nccl_symmetric),
        Algorithm("lsa_ll_oneshot", "nccl", kernel="reduce_scatter", params=PACKETS, variants=packets),
        Algorithm("lsa_ll128_oneshot", "nccl", kernel="reduce_scatter", params=PACKETS, variants=lines),
        Algorithm(
            "lsa_lamport_oneshot",
            "nccl",
            kernel="reduce_scatter",
            refuses=refuses_lamport,
            params=PACKETS,
            variants=whole_packets,
        ),
        Algorithm("lsa_oneshot", "nccl", kernel="reduce_scatter", params=TILES, variants=tiles),
        PIPES_REDUCE,
    ),
)


REDUCE_SCATTERV = Collective(
    name="reduce_scatterv",
    shapes=lambda call: (sum(ragged(call)), ragged(call)[call.rank]),
    reference=lambda call, inputs, fold: fold([block_of(x, ragged(call), call.rank) for x in inputs], call.redop),
    invoke=lambda comm, x, out, call: comm.reduce_scatterv(out, x, ragged(call), call.redop),
    size_count=lambda call: sum(ragged(call)),
    bus_factor=lambda n: (n - 1) / n,
    reduces=True,
    in_place=lambda call, whole: (whole, block_of(whole, ragged(call), call.rank)),
    algorithms=(*_ALGORITHMS, LINES_REDUCE, PIPES_REDUCE),
)
