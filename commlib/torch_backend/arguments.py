"""What torch's calls take: arguments with options or without, and tensors that become one row of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from commlib.core.dispatch import Make

_C10D: Any = dist.distributed_c10d  # declares little of what it has


class Signature(NamedTuple):
    """A call's options, how deep each of its tensor arguments lies in lists, and what may stand for the options."""

    call: str  # as profiles show it
    options: type
    depths: tuple[int, ...]
    short: tuple[str, ...] = ()


SIGNATURES: dict[str, Signature] = {
    "allreduce": Signature("all_reduce", _C10D.AllreduceOptions, (1,), ("op",)),
    "allreduce_coalesced": Signature("all_reduce", _C10D.AllreduceCoalescedOptions, (1,)),
    "reduce": Signature("reduce", _C10D.ReduceOptions, (1,), ("root", "op")),
    "broadcast": Signature("broadcast", _C10D.BroadcastOptions, (1,), ("root",)),
    "allgather": Signature("all_gather", _C10D.AllgatherOptions, (2, 1)),
    "allgather_coalesced": Signature("all_gather", _C10D.AllgatherOptions, (2, 1)),
    "all_gather_single": Signature("all_gather", _C10D.AllgatherOptions, (0, 0)),
    "all_gather_single_coalesced": Signature("all_gather", _C10D.AllgatherOptions, (1, 1)),
    "reduce_scatter": Signature("reduce_scatter", _C10D.ReduceScatterOptions, (1, 2), ("op",)),
    "reduce_scatter_single": Signature("reduce_scatter", _C10D.ReduceScatterOptions, (0, 0)),
    "reduce_scatter_single_coalesced": Signature("reduce_scatter", _C10D.ReduceScatterOptions, (1, 1)),
    "gather": Signature("gather", _C10D.GatherOptions, (2, 1), ("root",)),
    "gather_single": Signature("gather", _C10D.GatherOptions, (0, 0), ("root",)),  # torch 2.14
    "scatter": Signature("scatter", _C10D.ScatterOptions, (1, 2), ("root",)),
    "alltoall": Signature("all_to_all", _C10D.AllToAllOptions, (1, 1)),
    "all_to_all_single": Signature("all_to_all", _C10D.AllToAllOptions, (0, 0, 1, 1)),  # the last two are splits
    "barrier": Signature("barrier", _C10D.BarrierOptions, ()),
}
_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}


def with_options(name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    signature = SIGNATURES[name]
    tensors, rest = arguments[: len(signature.depths)], arguments[len(signature.depths) :]
    names = ("opts",) if rest and isinstance(rest[0], signature.options) else (*signature.short, "timeout")
    values = {**dict(zip(names, rest, strict=False)), **named}
    opts = values.pop("opts", None) or signature.options()
    for key, value in values.items():
        if key not in (*signature.short, "timeout"):
            raise TypeError(f"{name} takes no argument {key!r}")
        if value is not None:
            setattr(opts, _FIELDS[key], value)
    depths = [(wanted, _depth(x)) for wanted, x in zip(signature.depths, tensors, strict=False)]
    for _ in range(max((wanted - depth for wanted, depth in depths if depth is not None), default=0)):
        tensors = tuple([x] for x in tensors)
    return (*tensors, opts)


def _depth(x: Any) -> Any:
    depth = 0
    while isinstance(x, (list, tuple)):
        if not x:
            return None
        x, depth = x[0], depth + 1
    return depth if isinstance(x, Tensor) else None


def first_tensor(arguments: Sequence[Any]) -> Tensor | None:
    for argument in arguments:
        first = argument
        while isinstance(first, (list, tuple)) and first:
            first = first[0]
        if isinstance(first, Tensor):
            return first
    return None


# --- tensors as one row of memory: what c10d passes in lists, and what is dense in another order ----------------------


def flat(x: Tensor) -> Tensor:
    """Return a tensor whose elements are in a row: itself, or a view of it in the order they lie in memory.

    Where there are gaps between them, it is a copy. Ranks that pass tensors of the same strides see the same elements,
    as with torch's own backends.
    """
    if x.is_contiguous():
        return x
    dense: bool = torch.ops.aten.is_non_overlapping_and_dense(_strided(x))
    return x.as_strided((x.numel(),), (1,), x.storage_offset()) if dense else x.contiguous()


def in_place(tensors: Sequence[Tensor], run: Callable[[Make, Tensor], object]) -> Callable[[Make], None]:
    """Return a call that changes each tensor in its own memory; one that has gaps is copied, and then copied back."""
    for x in tensors:
        _strided(x)

    def call(make: Make) -> None:
        for x in tensors:
            row = flat(x)
            run(make, row)
            if row.data_ptr() != x.data_ptr():
                write(x, row)

    return call


def _strided(x: Tensor) -> Tensor:
    if x.layout is not torch.strided:
        raise NotImplementedError(f'backend "commlib" moves dense tensors, not {x.layout}; pass x.to_dense()')
    return x


def joined(blocks: Sequence[Tensor]) -> Tensor:
    """Return the blocks' elements in a row: where they lie in memory if that is so, else a copy.

    A single block keeps its shape.
    """
    if len(blocks) == 1:
        return _strided(blocks[0]).contiguous()
    return _row(blocks) if _in_a_row(blocks) else torch.cat([_strided(x).reshape(-1) for x in blocks])


def room_for(outs: Sequence[Tensor]) -> Tensor:
    """Return where to put the outputs' elements in a row: their own memory if they lie so, else new memory."""
    first = _strided(outs[0])
    if len(outs) == 1:
        return first if first.is_contiguous() else first.new_empty(first.shape)
    return _row(outs) if _in_a_row(outs) else first.new_empty(sum(x.numel() for x in outs))


def spread(row: Tensor, outs: Sequence[Tensor]) -> None:
    """Copy a row to the outputs, unless it is their own memory."""
    if row is outs[0] or (row.data_ptr() == outs[0].data_ptr() and _in_a_row(outs)):
        return
    for part, out in zip(row.view(-1).split([x.numel() for x in outs]), outs, strict=True):
        write(out, part)


def write(out: Tensor, row: Tensor) -> None:
    """Copy a row to a tensor, which may be a leaf that requires grad, or one of inference mode, in any thread."""
    with torch.inference_mode():
        out.copy_(row.view(out.shape))


def _in_a_row(tensors: Sequence[Tensor]) -> bool:
    """Whether they lie one behind the other in one piece of memory."""
    storage = tensors[0].untyped_storage().data_ptr()
    at = tensors[0].storage_offset()
    for x in tensors:
        if not x.is_contiguous() or x.storage_offset() != at or x.untyped_storage().data_ptr() != storage:
            return False
        at += x.numel()
    return True


def _row(tensors: Sequence[Tensor]) -> Tensor:
    first = tensors[0]
    return first.as_strided((sum(x.numel() for x in tensors),), (1,), first.storage_offset())
