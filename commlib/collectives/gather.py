"""gather: the root gets every rank's block, in rank order."""

from __future__ import annotations

import torch
from torch.distributed import GatherOptions

from commlib.backends.torch_dist import TorchBackend, as_bytes
from commlib.collectives import rows
from commlib.collectives.spec import Algorithm, Collective


def torch_direct(backend: TorchBackend, out: torch.Tensor | None, x: torch.Tensor, dst: int) -> None:
    if x.numel() == 0:
        return
    block = as_bytes(x).clone()
    blocks = [[torch.empty_like(block) for _ in range(backend.size)]] if backend.rank == dst else []
    backend.wait(backend.group.gather(blocks, [block], backend.options(GatherOptions(), rootRank=dst)), "gather")
    if blocks and out is not None:
        torch.cat(blocks[0], out=as_bytes(out))


GATHER = Collective(
    name="gather",
    shapes=lambda call: (call.count, call.count * call.size if call.rank == call.root else 0),
    reference=lambda call, inputs, fold: torch.cat(list(inputs)) if call.rank == call.root else None,
    invoke=lambda comm, x, out, call: comm.gather(x, call.root, out=out if comm.rank == call.root else None),
    rooted=True,
    algorithms=(
        Algorithm("shm_oneshot", "shm", params=rows.CHUNKS, variants=rows.chunks),
        Algorithm("nccl_direct", "nccl"),
        rows.LINES_MOVE,
        rows.PIPES_MOVE,
        Algorithm("torch_direct", "torch", run=torch_direct),
    ),
)
