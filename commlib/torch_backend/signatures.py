"""The signatures of torch's process groups: calls with an options object, or with op, root and timeout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

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
    """Return the arguments of a call in the form that ends with an options object."""
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
    """Return how deep a tensor is nested in lists; None where there is none."""
    depth = 0
    while isinstance(x, (list, tuple)):
        if not x:
            return None
        x, depth = x[0], depth + 1
    return depth if isinstance(x, Tensor) else None


def first_tensor(arguments: Sequence[Any]) -> Tensor | None:
    """Return the first tensor of a call's arguments, which may be lists of lists."""
    for argument in arguments:
        first = argument
        while isinstance(first, (list, tuple)) and first:
            first = first[0]
        if isinstance(first, Tensor):
            return first
    return None
