"""broadcast: every rank's tensor becomes the root's."""

from __future__ import annotations

import torch
from torch.distributed import BroadcastOptions

from commlib.backends.torch_dist import TorchBackend, as_bytes
from commlib.collectives import rows
from commlib.collectives.spec import Algorithm, Collective


def torch_direct(backend: TorchBackend, x: torch.Tensor, src: int) -> None:
    if x.numel() > 0:
        options = backend.options(BroadcastOptions(), rootRank=src)
        backend.wait(backend.group.broadcast([as_bytes(x)], options), "broadcast")


BROADCAST = Collective(
    name="broadcast",
    reference=lambda call, inputs, fold: inputs[call.root],
    invoke=lambda comm, x, out, call: comm.broadcast(out, call.root),
    bus_factor=lambda n: 1.0,
    rooted=True,
    out_of_place=False,
    algorithms=(
        Algorithm("shm_oneshot", "shm", params=rows.CHUNKS, variants=rows.chunks),
        Algorithm("shm_symmetric", "shm", placement="symmetric"),
        Algorithm("nccl_direct", "nccl"),
        rows.LINES_MOVE,
        rows.LINES_TWICE("lsa_ll128_twoshot", kernel="broadcast"),
        rows.PIPES_MOVE,
        rows.ENGINE_PULL,
        Algorithm("torch_direct", "torch", run=torch_direct),
    ),
)
