"""all_to_all: block j of rank i goes to block i of rank j; all_to_allv: blocks of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from commlib.backends.torch_dist import TorchBackend, as_bytes
from commlib.collectives import rows
from commlib.collectives.spec import Algorithm, Call, Collective, Fold
from commlib.collectives.torch_calls import refuses_lonely
from commlib.counts import counted


def torch_direct(
    backend: TorchBackend,
    out: torch.Tensor,
    x: torch.Tensor,
    out_splits: Sequence[int] | None = None,
    in_splits: Sequence[int] | None = None,
) -> None:
    from_each: list[int] = []
    to_each: list[int] = []
    if out_splits is not None or in_splits is not None:
        from_each = _blocks(out, out_splits, backend.size)
        to_each = _blocks(x, in_splits, backend.size)
        _agree(backend, from_each, to_each, x.element_size())
    to, source = as_bytes(out), as_bytes(x)
    if out.data_ptr() == x.data_ptr():
        source = source.clone()
    backend.wait(backend.group.alltoall_base(to, source, from_each, to_each), "all_to_all")


def _blocks(x: torch.Tensor, splits: Sequence[int] | None, size: int) -> list[int]:
    """Return the bytes of each block of a tensor: splits are rows of the first dimension, equal without them."""
    length = len(x) if x.dim() else 1
    lengths = [length // size] * size if splits is None else splits
    return [int(n) * x.nbytes // max(length, 1) for n in lengths]


def _agree(backend: TorchBackend, from_each: Sequence[int], to_each: Sequence[int], unit: int) -> None:
    size = backend.size
    mine = torch.tensor([*to_each, *from_each], dtype=torch.int64, device=backend.device)
    everyone = mine.new_empty(size * len(mine))
    backend.wait(backend.group._allgather_base(everyone, mine), "all_to_all")
    table = everyone.view(size, 2 * size).tolist()
    for source in range(size):
        for target in range(size):
            sent, expected = table[source][target], table[target][size + source]
            if sent != expected:
                raise ValueError(
                    f"all_to_all splits disagree: rank {source} sends {counted(sent // unit, 'element')} to rank "
                    f"{target}, which expects {expected // unit}; make out_splits the transpose of in_splits"
                )


def split_table(call: Call) -> list[list[int]]:
    """Elements rank i sends to rank j in a v-variant's test: ragged, with zeros."""
    return [[(call.count * ((i + 2 * j + 1) % 3) + i * j % 2) // 2 for j in range(call.size)] for i in range(call.size)]


def _in_splits(call: Call) -> list[int]:
    return split_table(call)[call.rank]


def _out_splits(call: Call) -> list[int]:
    return [row[call.rank] for row in split_table(call)]


def _received(call: Call, inputs: Sequence[torch.Tensor], fold: Fold) -> torch.Tensor:
    table, j = split_table(call), call.rank
    return torch.cat([x[sum(row[:j]) : sum(row[: j + 1])] for x, row in zip(inputs, table, strict=True)])


ALL_TO_ALL = Collective(
    name="all_to_all",
    shapes=lambda call: (call.count * call.size, call.count * call.size),
    reference=lambda call, inputs, fold: torch.cat([call.block(x) for x in inputs]),
    invoke=lambda comm, x, out, call: comm.all_to_all_single(out, x),
    algorithms=(
        Algorithm("shm_oneshot", "shm", params=rows.MOVED_CHUNKS, variants=rows.moved_chunks),
        Algorithm("shm_symmetric", "shm", placement="symmetric"),
        Algorithm("nccl_direct", "nccl", in_place=False),
        rows.LINES_MOVE,
        Algorithm("lsa_oneshot", "nccl", kernel="all_to_all", params=rows.TILES, variants=rows.tiles),
        rows.PIPES_MOVE,
        replace(rows.ENGINE_PULL, in_place=False),
        Algorithm("torch_direct", "torch", run=torch_direct),
    ),
)

ALL_TO_ALLV = Collective(
    name="all_to_allv",
    shapes=lambda call: (sum(_in_splits(call)), sum(_out_splits(call))),
    reference=_received,
    invoke=lambda comm, x, out, call: comm.all_to_all_single(out, x, _out_splits(call), _in_splits(call)),
    has_in_place=False,
    size_count=lambda call: max(max(row) for row in split_table(call)) * call.size,
    algorithms=(
        Algorithm("shm_oneshot", "shm", params=rows.MOVED_CHUNKS, variants=rows.moved_chunks),
        Algorithm("nccl_direct", "nccl"),
        rows.PIPES_MOVE,
        Algorithm("torch_direct", "torch", run=torch_direct, refuses=refuses_lonely),
    ),
)
