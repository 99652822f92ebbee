"""Tensors as one row of memory: what c10d passes in lists, and what is dense in another order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from commlib.core.dispatch import Make


def flat(x: Tensor) -> Tensor:
    """Return a tensor whose elements are in a row: itself, or a view of it in the order they lie in memory.

    Where there are gaps between them, it is a copy. Ranks that pass tensors of the same strides see the same elements,
    as with torch's own backends.
    """
    if x.is_contiguous():
        return x
    return x.as_strided((x.numel(),), (1,), x.storage_offset()) if _dense(_strided(x)) else x.contiguous()


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


def _dense(x: Tensor) -> bool:
    """Whether its elements fill a piece of memory, in whatever order."""
    steps = sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1)
    expected = 1
    for stride, size in steps:
        if stride != expected:
            return False
        expected *= size
    return True


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
