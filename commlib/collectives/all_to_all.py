"""all_to_all: block j of rank i goes to block i of rank j; all_to_allv: blocks of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from commlib.backends.torch_dist import TorchBackend
from commlib.collectives.params import CHUNKS, PACKETS, TILES
from commlib.collectives.spec import Algorithm, Call, Collective
from commlib.collectives.torch_calls import as_bytes, refuses_lonely
from commlib.collectives.variants import chunks, lines, tiles

if TYPE_CHECKING:
    from commlib.methods import Collectives


def torch_direct(
    backend: TorchBackend,
    out: torch.Tensor,
    x: torch.Tensor,
    out_splits: tuple[int, ...] = (),
    in_splits: tuple[int, ...] = (),
    longest: int = 0,
) -> None:
    """Call the process group's all_to_all_single."""
    unit = x.element_size()
    to, source = as_bytes(out), as_bytes(x)
    if out.data_ptr() == x.data_ptr():
        source = source.clone()
    splits = [[n * unit for n in out_splits], [n * unit for n in in_splits]]
    backend.wait(backend.group.alltoall_base(to, source, *splits), "all_to_all")


def split_table(call: Call) -> list[list[int]]:
    """Elements rank i sends to rank j in a v-variant's test: ragged, with zeros."""
    return [[(call.count * ((i + 2 * j) % 3) + i * j % 2) // 2 for j in range(call.size)] for i in range(call.size)]


def _in_splits(call: Call) -> list[int]:
    return split_table(call)[call.rank]


def _out_splits(call: Call) -> list[int]:
    return [row[call.rank] for row in split_table(call)]


def _received(call: Call, inputs: list[torch.Tensor]) -> torch.Tensor:
    table, j = split_table(call), call.rank
    return torch.cat([x[sum(row[:j]) : sum(row[: j + 1])] for x, row in zip(inputs, table, strict=True)])


ALL_TO_ALL = Collective(
    name="all_to_all",
    shapes=lambda call: (call.count * call.size, call.count * call.size),
    reference=lambda call, inputs, fold: torch.cat([call.block(x) for x in inputs]),
    invoke=lambda comm, x, out, call: comm.all_to_all_single(out, x),
    size_count=lambda call: call.count * call.size,
    bus_factor=lambda n: (n - 1) / n,
    in_place=lambda call, whole: (whole, whole),
    algorithms=(
        Algorithm("shm_oneshot", "shm", params=CHUNKS, variants=chunks),
        Algorithm("shm_symmetric", "shm", placement="symmetric"),
        Algorithm("nccl_direct", "nccl", in_place=False),
        Algorithm("lsa_ll128_exchange", "nccl", kernel="all_to_all", params=PACKETS, variants=lines),
        Algorithm("lsa_oneshot", "nccl", kernel="all_to_all", params=TILES, variants=tiles),
        Algorithm("torch_direct", "torch", run=torch_direct),
    ),
)

ALL_TO_ALLV = Collective(
    name="all_to_allv",
    shapes=lambda call: (sum(_in_splits(call)), sum(_out_splits(call))),
    reference=lambda call, inputs, fold: _received(call, list(inputs)),
    invoke=lambda comm, x, out, call: comm.all_to_all_single(out, x, _out_splits(call), _in_splits(call)),
    size_count=lambda call: max(max(row) for row in split_table(call)) * call.size,
    bus_factor=lambda n: (n - 1) / n,
    algorithms=(
        Algorithm("shm_oneshot", "shm", params=CHUNKS, variants=chunks),
        Algorithm("nccl_direct", "nccl"),
        Algorithm("torch_direct", "torch", run=torch_direct, refuses=refuses_lonely),
    ),
)


def row_splits(
    out: torch.Tensor, out_splits: Sequence[int] | None, x: torch.Tensor, in_splits: Sequence[int] | None, size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Turn splits of rows into the elements that come from each rank and go to each."""
    row = x[0].numel() if x.dim() and len(x) else (out[0].numel() if out.dim() and len(out) else 1)
    from_each = tuple(n * row for n in _splits(out_splits, out, size, "out"))
    return from_each, tuple(n * row for n in _splits(in_splits, x, size, "in"))


def agree_splits(comm: Collectives, from_each: Sequence[int], to_each: Sequence[int]) -> int:
    """Show every rank every rank's splits: they must match in pairs, and the longest sets the pace."""
    mine = torch.tensor([*to_each, *from_each], dtype=torch.int64, device=comm.device)
    everyone = torch.empty((comm.size, 2 * comm.size), dtype=torch.int64, device=comm.device)
    with comm._inner():
        table = comm.all_gather_into_tensor(everyone, mine).tolist()
    for source in range(comm.size):
        for target in range(comm.size):
            sent, expected = table[source][target], table[target][comm.size + source]
            if sent != expected:
                raise ValueError(
                    f"all_to_all splits disagree: rank {source} sends {sent} elements to rank {target}, "
                    f"which expects {expected}; make out_splits the transpose of in_splits"
                )
    return max(int(n) for row in table for n in row[: comm.size])


def _splits(given: Sequence[int] | None, x: torch.Tensor, size: int, name: str) -> list[int]:
    rows = len(x) if x.dim() else x.numel()
    if given is None:
        if rows % size:
            raise ValueError(f"{name}_splits is not given and {rows} rows do not divide into {size} ranks")
        return [rows // size] * size
    if len(given) != size or sum(given) != rows:
        raise ValueError(
            f"{name}_splits has {len(given)} entries that add up to {sum(given)}; "
            f"the tensor has {rows} rows for {size} ranks"
        )
    return list(given)
