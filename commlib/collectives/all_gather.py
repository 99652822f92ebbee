"""all_gather: every rank gets every rank's block, in rank order; all_gatherv: blocks of different sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from commlib.backends.torch_dist import TorchBackend, as_bytes
from commlib.collectives import rows
from commlib.collectives.spec import Algorithm, Call, Collective


def torch_direct(backend: TorchBackend, out: torch.Tensor, x: torch.Tensor, sizes: Sequence[int] | None = None) -> None:
    """Call the process group's all_gather_into_tensor, or its all_gather where blocks differ."""
    whole, block = as_bytes(out), as_bytes(x)
    if whole.numel() == 0:
        return
    if sizes is None:
        backend.wait(backend.group._allgather_base(whole, block.clone()), "all_gather")
        return
    # Engines gather equal blocks: pad to the longest, then cut.
    longest = max(sizes) * x.element_size()
    padded = torch.zeros(longest, dtype=torch.uint8, device=x.device)
    padded[: block.numel()] = block
    blocks = [torch.empty_like(padded) for _ in sizes]
    backend.wait(backend.group.allgather([blocks], [padded]), "all_gatherv")
    torch.cat([b[: n * x.element_size()] for b, n in zip(blocks, sizes, strict=True)], out=whole)


def ragged(call: Call) -> tuple[int, ...]:
    """Block sizes for a v-variant's test: they differ, one may be empty, and their mean is about count."""
    return tuple(call.count * r * 2 // max(call.size - 1, 1) + (call.count > 0) * r % 3 for r in range(call.size))


def block_of(whole: torch.Tensor, sizes: Sequence[int], rank: int) -> torch.Tensor:
    return whole[sum(sizes[:rank]) : sum(sizes[: rank + 1])]


_ALGORITHMS = (
    Algorithm("shm_oneshot", "shm", params=rows.MOVED_CHUNKS, variants=rows.moved_chunks),
    Algorithm("shm_symmetric", "shm", placement="symmetric"),
    Algorithm("nccl_direct", "nccl"),
    Algorithm("torch_direct", "torch", run=torch_direct),
)

ALL_GATHER = Collective(
    name="all_gather",
    shapes=lambda call: (call.count, call.count * call.size),
    reference=lambda call, inputs, fold: torch.cat(list(inputs)),
    invoke=lambda comm, x, out, call: comm.all_gather_into_tensor(out, x),
    algorithms=(
        *_ALGORITHMS,
        Algorithm("nccl_staged", "nccl", arena=True),
        Algorithm("nccl_symmetric", "nccl", placement="symmetric", refuses=rows.refuses_old_nccl),
        rows.ENGINE_PULL,
        Algorithm("lsa_ll_oneshot", "nccl", kernel="all_gather", params=rows.PACKETS, variants=rows.packets),
        Algorithm("lsa_ll128_oneshot", "nccl", kernel="all_gather", params=rows.PACKETS, variants=rows.lines),
        Algorithm("lsa_oneshot", "nccl", kernel="all_gather", params=rows.TILES, variants=rows.tiles),
        rows.PIPES_MOVE,
    ),
)

ALL_GATHERV = Collective(
    name="all_gatherv",
    shapes=lambda call: (ragged(call)[call.rank], sum(ragged(call))),
    reference=lambda call, inputs, fold: torch.cat(list(inputs)),
    invoke=lambda comm, x, out, call: comm.all_gatherv(out, x, ragged(call)),
    algorithms=(
        *_ALGORITHMS,
        rows.LINES_MOVE,
        rows.PIPES_MOVE,
    ),
)
