"""broadcast: every rank's tensor becomes the root's."""

from __future__ import annotations

import torch
from torch.distributed import BroadcastOptions

from commlib.backends.torch_dist import TorchBackend, as_bytes
from commlib.collectives.exchanges import LINES_MOVE, PIPES_MOVE
from commlib.collectives.params import CHUNKS, PACKETS
from commlib.collectives.spec import Algorithm, Collective
from commlib.collectives.variants import chunks, engines, two_phases_of_lines


def torch_direct(backend: TorchBackend, x: torch.Tensor, src: int) -> None:
    """Call the process group's broadcast."""
    if x.numel() > 0:
        options = backend.options(BroadcastOptions(), rootRank=src)
        backend.wait(backend.group.broadcast([as_bytes(x)], options), "broadcast")


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
        Algorithm("lsa_ll128_twoshot", "nccl", kernel="broadcast", params=PACKETS, variants=two_phases_of_lines),
        PIPES_MOVE,
        Algorithm("engine_pull", "nccl", placement="symmetric", kernel="all_gather", engine=True, variants=engines),
        Algorithm("torch_direct", "torch", run=torch_direct),
    ),
)
