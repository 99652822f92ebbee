"""scatter: rank r gets block r of the root's tensor."""

from __future__ import annotations

import torch
from torch.distributed import ScatterOptions

from commlib.backends.torch_dist import TorchBackend, as_bytes
from commlib.collectives import rows
from commlib.collectives.spec import Algorithm, Collective


def torch_direct(backend: TorchBackend, out: torch.Tensor, x: torch.Tensor | None, src: int) -> None:
    if out.numel() == 0:
        return
    block = torch.empty_like(as_bytes(out))
    blocks = [] if x is None else [list(as_bytes(x).clone().chunk(backend.size))]
    backend.wait(backend.group.scatter([block], blocks, backend.options(ScatterOptions(), rootRank=src)), "scatter")
    as_bytes(out).copy_(block)


SCATTER = Collective(
    name="scatter",
    shapes=lambda call: (call.count * call.size if call.rank == call.root else 0, call.count),
    reference=lambda call, inputs, fold: call.block(inputs[call.root]),
    invoke=lambda comm, x, out, call: comm.scatter(x if comm.rank == call.root else None, call.root, out=out),
    rooted=True,
    algorithms=(
        Algorithm("shm_oneshot", "shm", params=rows.MOVED_CHUNKS, variants=rows.moved_chunks),
        Algorithm("nccl_direct", "nccl"),
        rows.LINES_MOVE,
        rows.PIPES_MOVE,
        Algorithm("torch_direct", "torch", run=torch_direct),
    ),
)
