"""Row gather for embeddings, also of one shard of a vocabulary; csrc/kernels/index.cc has the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from commlib import native
from commlib.errors import CommError, Unsupported

# What happens to an id that no row stands for: a zero row, a zero row that is counted, an error before any write.
OUT_OF_RANGE = ("zero", "count", "raise")

# Subclasses go through torch's dispatcher: they are fake, functional or wrap what native code cannot see.
_PLAIN = frozenset({Tensor, torch.nn.Parameter})

_LARGEST_ID = 2**63 - 1


def index(
    weights: Tensor,
    ids: Tensor,
    *,
    out: Tensor | None = None,
    vocab_range: tuple[int, int] | None = None,
    out_of_range: str = "zero",
) -> Tensor:
    """Return the rows of `weights` that `ids` name; zero rows for ids outside `vocab_range` or the table."""
    _check(weights, ids, out)
    if out_of_range not in OUT_OF_RANGE:
        raise ValueError(f"out_of_range is {out_of_range!r}, but must be one of {', '.join(OUT_OF_RANGE)}")
    start, length, policy = 0, weights.shape[0], out_of_range
    if vocab_range is not None:
        (start, length), policy = _shard(vocab_range, length), "zero"
    if torch.compiler.is_compiling() or not _native_can_see(weights, ids, out):
        return _dispatched(weights, ids, out, (start, length, policy))
    if out is None:
        out = weights.new_empty((*ids.shape, weights.shape[1]))
    _run(out, weights, ids, start, length, policy)
    return out


def out_of_range_count(device: str | torch.device = "cpu", reset: bool = True) -> int:
    """Return how many rows calls with out_of_range="count" have filled with zeros since the last reset."""
    if torch.device(device).type != "cpu":
        raise Unsupported(f"commlib.kernels.index has no GPU kernel yet, so nothing is counted on {device}; pass 'cpu'")
    return int(_counter()(reset))


def _check(weights: Tensor, ids: Tensor, out: Tensor | None) -> None:
    """Refuse what the result cannot be made for; native code checks types, shapes, strides and overlaps."""
    _check_types(weights, ids, out)
    if not (weights.is_cpu and ids.is_cpu and (out is None or out.is_cpu)):
        _check_devices([weights, ids] if out is None else [weights, ids, out])
    if torch.is_grad_enabled() and (weights.requires_grad or (out is not None and out.requires_grad)):
        raise ValueError(
            "weights or out requires a gradient, but index has no backward; call it under torch.no_grad(), "
            "or use torch.nn.functional.embedding"
        )
    if weights.dim() != 2:
        raise ValueError(f"weights has {weights.dim()} dimensions, but index takes rows of a table of 2; reshape it")


def _check_types(weights: object, ids: object, out: object) -> None:
    if not (isinstance(weights, Tensor) and isinstance(ids, Tensor) and (out is None or isinstance(out, Tensor))):
        kinds = ", ".join(type(tensor).__name__ for tensor in (weights, ids, out))
        raise TypeError(f"weights, ids and out are {kinds}, but must be torch tensors (out also None)")


def _check_devices(tensors: list[Tensor]) -> None:
    devices = [str(tensor.device) for tensor in tensors]
    if len(set(devices)) > 1:
        raise ValueError(f"the tensors are on different devices ({', '.join(devices)}); move them to one")
    if devices[0] != "meta":  # meta tensors have shapes only: torch's dispatcher answers for them
        raise Unsupported(
            f"commlib.kernels.index has no GPU kernel yet, and the tensors are on {devices[0]}; "
            "move them to the CPU or use torch.index_select"
        )


def _shard(vocab_range: tuple[int, int], rows: int) -> tuple[int, int]:
    start, length = vocab_range
    if start < 0 or length < 0 or start > _LARGEST_ID - length:
        raise ValueError(f"vocab_range is ({start}, {length}), but start and length must be 0 or more, and fit int64")
    if length > rows:
        raise ValueError(f"vocab_range is {length} long, but weights has {rows} rows; pass those of this shard")
    return start, length


def _native_can_see(weights: Tensor, ids: Tensor, out: Tensor | None) -> bool:
    plain = type(weights) in _PLAIN and type(ids) in _PLAIN and (out is None or type(out) in _PLAIN)
    return plain and weights.is_cpu


def _dispatched(weights: Tensor, ids: Tensor, out: Tensor | None, rows: tuple[int, int, str]) -> Tensor:
    if out is None:
        result: Tensor = _index(weights, ids, *rows)
        return result
    _index_into(out, weights, ids, *rows)
    return out


def _run(out: Tensor, weights: Tensor, ids: Tensor, start: int, length: int, out_of_range: str) -> None:
    # Torch notes these on the tensor; the bytes do not show them.
    if weights.is_conj() or weights.is_neg() or out.is_conj() or out.is_neg():
        raise ValueError("weights or out is a lazy conjugate or negative, but index moves bytes; resolve it first")
    try:
        _gather()(out, weights, ids, start, length, out_of_range)
    except CommError:
        raise
    except RuntimeError:  # torch, of a tensor without plain memory: sparse, quantised, bits
        kinds = ", ".join(f"{tensor.dtype} {tensor.layout}" for tensor in (weights, ids, out))
        raise ValueError(
            f"weights, ids and out are {kinds}, but index needs dense tensors of plain bytes; convert or view them"
        ) from None


@cache
def _gather() -> Callable[..., Any]:
    return native.kernel("index")


@cache
def _counter() -> Callable[..., Any]:
    return native.kernel("out_of_range_count")


# For torch.compile and tensor subclasses. "count" and "raise" act when the call runs: a compiler may drop a call whose
# result nobody uses.
@torch.library.custom_op("commlib::index", mutates_args=())
def _index(weights: Tensor, ids: Tensor, start: int, length: int, out_of_range: str) -> Tensor:
    out = weights.new_empty((*ids.shape, weights.shape[1]))
    _run(out, weights, ids, start, length, out_of_range)
    return out


@_index.register_fake
def _(weights: Tensor, ids: Tensor, start: int, length: int, out_of_range: str) -> Tensor:
    return weights.new_empty((*ids.shape, weights.shape[1]))


@torch.library.custom_op("commlib::index_into", mutates_args=("out",))
def _index_into(out: Tensor, weights: Tensor, ids: Tensor, start: int, length: int, out_of_range: str) -> None:
    _run(out, weights, ids, start, length, out_of_range)


@_index_into.register_fake
def _(out: Tensor, weights: Tensor, ids: Tensor, start: int, length: int, out_of_range: str) -> None:
    pass
