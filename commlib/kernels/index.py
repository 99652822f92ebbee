"""Row gather for embeddings, also of one shard of a vocabulary; csrc/kernels/index/check.cc has the checks."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from commlib.errors import Unsupported
from commlib.kernels import dispatch
from commlib.kernels.dispatch import PLAIN, PLAIN_OR_NONE, compiling, grad_enabled
from commlib.native import library

# What happens to an id that no row stands for: a zero row, a zero row that is counted, an error before any write.
OUT_OF_RANGE = ("zero", "count", "raise")

_LARGEST_ID = 2**63 - 1
_DLPACK_TYPES = {"cpu": 1, "cuda": 2}
_ALL = (0, -1)  # native code knows how many rows there are


def index(
    weights: Tensor,
    ids: Tensor,
    *,
    out: Tensor | None = None,
    vocab_range: tuple[int, int] | None = None,
    out_of_range: str = "zero",
) -> Tensor:
    """Return the rows of `weights` that `ids` names; an id outside `vocab_range` or the table gives a zero row."""
    plain = type(weights) in PLAIN and type(ids) in PLAIN and type(out) in PLAIN_OR_NONE
    if not plain:
        dispatch.check_tensors("index", weights=weights, ids=ids, **({} if out is None else {"out": out}))
    if grad_enabled() and (weights.requires_grad or (out is not None and out.requires_grad)):
        dispatch.refuse_gradients("index", "weights or out")
    if out_of_range not in OUT_OF_RANGE:
        raise ValueError(f"out_of_range is {out_of_range!r}, but must be one of {', '.join(OUT_OF_RANGE)}")
    start, length = _ALL
    if vocab_range is not None:
        start, length = _shard(vocab_range)
        out_of_range = "zero"  # the rows of other shards are no mistake
    if out is None:
        out = weights.new_empty((*ids.shape, *weights.shape[-1:]))
    (_index_into if not plain or compiling() else _run)(out, weights, ids, start, length, out_of_range)
    return out


def _shard(vocab_range: tuple[int, int]) -> tuple[int, int]:
    start, length = vocab_range
    if start < 0 or length < 0 or start > _LARGEST_ID - length:
        raise ValueError(f"vocab_range is ({start}, {length}), but start and length must be 0 or more, and fit int64")
    return start, length


def _run(out: Tensor, weights: Tensor, ids: Tensor, start: int, length: int, out_of_range: str) -> None:
    try:
        if not library.index(out, weights, ids, start, length, out_of_range):
            # GPUs read ids of one block: a launch.
            library.index(out, weights, ids.contiguous(), start, length, out_of_range)
    except ValueError:
        if not dispatch.on_meta(out, weights, ids):
            raise


def out_of_range_count(device: str | torch.device = "cpu", *, kernel: str = "index", reset: bool = True) -> int:
    """Return what calls of a kernel on this device left out since the last reset; on a GPU, after they have run."""
    where = torch.device(device)
    if where.type not in _DLPACK_TYPES or (where.type == "cuda" and not torch.cuda.is_available()):
        raise Unsupported(f"no kernel of commlib runs on {where} here, so nothing is counted there; pass 'cpu'")
    number = cast("int | None", where.index)  # torch's stubs know no "cuda" without a number
    if number is None:
        number = torch.cuda.current_device() if where.type == "cuda" else 0
    return library.out_of_range_count(kernel, _DLPACK_TYPES[where.type], number, reset)


# For torch.compile and tensor subclasses; the result is made outside. "count" and "raise" act when the call runs: a
# compiler may drop a call whose result nobody uses.
_index_into = torch.library.custom_op("commlib::index_into", _run, mutates_args=("out",))
