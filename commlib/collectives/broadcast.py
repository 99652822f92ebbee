"""broadcast: every rank's tensor becomes the root's."""

from __future__ import annotations

import torch
from torch.distributed import BroadcastOptions

from commlib.backends.torch_dist import TorchBackend, as_bytes
from commlib.collectives.exchanges import LINES_MOVE, PIPES_MOVE
from commlib.collectives.hier_calls import complete, doublings, hosts_of, share_of, shares, spread, two_exchanges
from commlib.collectives.params import CHUNKS
from commlib.collectives.spec import Algorithm, Collective, Link
from commlib.collectives.variants import chunks, engines


def torch_direct(backend: TorchBackend, x: torch.Tensor, src: int) -> None:
    """Call the process group's broadcast."""
    if x.numel() > 0:
        options = backend.options(BroadcastOptions(), rootRank=src)
        backend.wait(backend.group.broadcast([as_bytes(x)], options), "broadcast")


def hier_oneshot(backend: TorchBackend, x: torch.Tensor, src: int) -> None:
    """Pass the tensor on to one rank of each host, which gives it to the others."""
    if x.numel() > 0:
        hosts = hosts_of(backend)
        delegates, root = hosts.delegates(src)
        if backend.rank in delegates:
            spread(backend, x, delegates, root, "broadcast")
        hosts.calls.broadcast(x, hosts.own.index(delegates[hosts.here]))


def hier_twoshot(backend: TorchBackend, x: torch.Tensor, src: int) -> None:
    """Cut the root's tensor into a piece for each host and lane; then gather the pieces between hosts and inside."""
    if x.numel() == 0:
        return
    hosts, whole = hosts_of(backend), as_bytes(x)
    _, root = hosts.delegates(src)
    if hosts.here == root:
        hosts.calls.broadcast(x, hosts.own.index(src))
    sizes = shares(whole.numel(), hosts.lanes, len(hosts.own))
    share, count = share_of(whole, sizes, hosts.local), len(hosts.ranks)
    piece = -(-share.numel() // count)
    rows = hosts.scratch("room", count * piece, whole).view(count, piece)
    if share.numel():
        if hosts.here == root:
            rows.view(-1)[: share.numel()] = share
            to = [(peer, rows[host]) for host, peer in hosts.others]
            backend.exchange("broadcast", to, [])
        else:
            backend.exchange("broadcast", [], [(hosts.lane[root], rows[hosts.here])])
        complete(backend, rows, "broadcast")
    if hosts.here != root:
        hosts.calls.all_gatherv(whole, rows.view(-1)[: share.numel()], sizes)


BROADCAST = Collective(
    name="broadcast",
    shapes=lambda call: (call.count, call.count),
    reference=lambda call, inputs, fold: inputs[call.root],
    invoke=lambda comm, x, out, call: comm.broadcast(out, call.root),
    size_count=lambda call: call.count,
    bus_factor=lambda n: 1.0,
    rooted=True,
    in_place=lambda call, whole: (whole, whole),
    out_of_place=False,
    algorithms=(
        Algorithm("shm_oneshot", "shm", params=CHUNKS, variants=chunks),
        Algorithm("shm_symmetric", "shm", placement="symmetric"),
        Algorithm("nccl_direct", "nccl"),
        LINES_MOVE,
        PIPES_MOVE,
        Algorithm("engine_pull", "nccl", placement="symmetric", kernel="all_gather", engine=True, variants=engines),
        Algorithm("torch_direct", "torch", run=torch_direct),
        Algorithm(
            "hier_oneshot",
            "torch",
            hosts=True,
            run=hier_oneshot,
            link=lambda hosts, num_bytes: Link(doublings(hosts), doublings(hosts) * num_bytes),
        ),
        Algorithm(
            "hier_twoshot",
            "torch",
            hosts=True,
            run=hier_twoshot,
            link=two_exchanges,
        ),
    ),
)
