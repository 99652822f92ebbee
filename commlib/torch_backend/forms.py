"""The forms in which torch's process groups take a call: with an options object, or with op, root and timeout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

_C10D: Any = dist.distributed_c10d  # declares little of what it has


class Form(NamedTuple):
    """A call's options, how deep each of its tensor arguments lies in lists, and what may stand for the options."""

    call: str  # as profiles show it
    options: type
    depths: tuple[int, ...]
    short: tuple[str, ...] = ()


FORMS: dict[str, Form] = {
    "allreduce": Form("all_reduce", _C10D.AllreduceOptions, (1,), ("op",)),
    "allreduce_coalesced": Form("all_reduce", _C10D.AllreduceCoalescedOptions, (1,)),
    "reduce": Form("reduce", _C10D.ReduceOptions, (1,), ("root", "op")),
    "broadcast": Form("broadcast", _C10D.BroadcastOptions, (1,), ("root",)),
    "allgather": Form("all_gather", _C10D.AllgatherOptions, (2, 1)),
    "allgather_coalesced": Form("all_gather", _C10D.AllgatherOptions, (2, 1)),
    "all_gather_single": Form("all_gather", _C10D.AllgatherOptions, (0, 0)),
    "all_gather_single_coalesced": Form("all_gather", _C10D.AllgatherOptions, (1, 1)),
    "reduce_scatter": Form("reduce_scatter", _C10D.ReduceScatterOptions, (1, 2), ("op",)),
    "reduce_scatter_single": Form("reduce_scatter", _C10D.ReduceScatterOptions, (0, 0)),
    "reduce_scatter_single_coalesced": Form("reduce_scatter", _C10D.ReduceScatterOptions, (1, 1)),
    "gather": Form("gather", _C10D.GatherOptions, (2, 1), ("root",)),
    "gather_single": Form("gather", _C10D.GatherOptions, (0, 0), ("root",)),  # torch 2.14
    "scatter": Form("scatter", _C10D.ScatterOptions, (1, 2), ("root",)),
    "alltoall": Form("all_to_all", _C10D.AllToAllOptions, (1, 1)),
    "all_to_all_single": Form("all_to_all", _C10D.AllToAllOptions, (0, 0, 1, 1)),  # the last two are splits
    "barrier": Form("barrier", _C10D.BarrierOptions, ()),
}
_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}


def with_options(name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of a call in the form that ends with an options object."""
    form = FORMS[name]
    tensors, rest = arguments[: len(form.depths)], arguments[len(form.depths) :]
    names = ("opts",) if rest and isinstance(rest[0], form.options) else (*form.short, "timeout")
    given = {**dict(zip(names, rest, strict=False)), **named}
    opts = given.pop("opts", None) or form.options()
    for key, value in given.items():
        if key not in (*form.short, "timeout"):
            raise TypeError(f"{name} takes no argument {key!r}")
        if value is not None:
            setattr(opts, _FIELDS[key], value)
    depths = [(wanted, _depth(x)) for wanted, x in zip(form.depths, tensors, strict=False)]
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
