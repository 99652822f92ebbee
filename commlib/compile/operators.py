"""The operators that stand for calls in a graph of torch.compile. Each returns a new tensor, and writes none.

They are ordered among each other and none is dropped, so all ranks make the same calls in the same order. A graph names
its communicator by a string. Eager calls do not use them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from commlib.collectives.all_reduce_rms_norm import COMPUTED_SCALES, FP8, scale_shape
from commlib.collectives.signatures import SIGNATURES
from commlib.core.dispatch import Dispatching
from commlib.errors import Closed

COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "all_gatherv", "reduce_scatter", "reduce_scatterv"),
    *("all_to_all", "all_to_allv", "gather", "scatter"),
)
MESSAGES = ("send", "recv", "send_recv")
# What the operator of a call takes before max_sms: an operator always gets the `out` that its result is like.
PARAMETERS = {
    name: tuple(f"{'Tensor' if x.name == 'out' else x.type} {x.name}" for x in SIGNATURES[name].parameters)
    for name in (*COLLECTIVES, *MESSAGES)
}
_NORM = f"{SIGNATURES['all_reduce_rms_norm'].inputs}, int max_sms, str comm"

COMMUNICATORS: WeakValueDictionary[str, Dispatching] = WeakValueDictionary()
OPS = torch.ops.commlib
_LIBRARY = torch.library.Library("commlib", "FRAGMENT")
_RUNS: dict[str, Callable[..., Any]] = {}
_ORDERED: set[str] = set()


def communicator(name: str) -> Dispatching:
    """Return the communicator that a graph knows by this name."""
    comm = COMMUNICATORS.get(name)
    if comm is None:
        raise Closed("the communicator of this compiled graph is gone; keep it as long as the graph is used")
    return comm


def contiguous(*arguments: Any) -> list[Any]:
    """Return what a call takes: of what an operator with an effect reads, Inductor chooses the strides anew."""
    return [x.contiguous() if isinstance(x, Tensor) else x for x in arguments]


def define(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Define an operator that makes a call, and return it; one that exists already runs this from now on."""
    exists = name in _RUNS
    _RUNS[name] = run
    if not exists:
        _LIBRARY.define(name + schema)
        _LIBRARY.impl(name, lambda *arguments: _RUNS[name](*arguments), "CompositeExplicitAutograd")  # noqa: PLW0108
        torch.library.register_fake(f"commlib::{name}", fake, lib=_LIBRARY)
        if _ORDERED:
            _order(name)
    return getattr(OPS, name)


def order() -> None:
    """Have Dynamo keep the order of all operators, and of those that are defined later."""
    for name in _RUNS:
        _order(name)


def _order(name: str) -> None:
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    _register_effectful_op(getattr(OPS, name).default, _EffectType.ORDERED)
    _ORDERED.add(name)


def _define_call(name: str, parameters: tuple[str, ...]) -> None:
    """Define the operator of a call that writes one tensor: `out`, x of a broadcast, or none."""
    names = [parameter.split()[1] for parameter in parameters]
    written = names.index("out") if "out" in names else 0
    result = "()" if name == "send" else "Tensor"

    def run(*arguments: Any) -> Tensor | None:
        *values, graph_name = arguments
        values = contiguous(*values)
        if name != "send":
            x = values[written]
            values[written] = x.clone() if name == "broadcast" else torch.empty_like(x)
        if name in MESSAGES:
            getattr(communicator(graph_name), name)(*values)
        else:
            _call(name, *values, graph_name)
        return None if name == "send" else values[written]

    def fake(*arguments: Any) -> Tensor | None:
        return None if name == "send" else _like(arguments[written])

    limit = () if name in MESSAGES else ("int max_sms",)
    define(name, f"({', '.join((*parameters, *limit, 'str comm'))}) -> {result}", run, fake)


def _call(name: str, *arguments: Any) -> None:
    """Make a native call; the last two arguments are max_sms and the communicator's name."""
    *values, max_sms, graph_name = arguments
    dispatcher = communicator(graph_name).dispatcher
    limit = dispatcher.limit(max_sms) if max_sms else ()
    dispatcher.now(name, *values, *limit)


def _like(out: Tensor) -> Tensor:
    return torch.empty_like(out, memory_format=torch.contiguous_format)


def _run_norm(*arguments: Any) -> tuple[Tensor, ...]:
    x, residual, weight, bias, scale, *numbers, quant, max_sms, comm = contiguous(*arguments)
    results = _norm_results(x, quant)
    outs = (*results, None)[:3]
    _call("all_reduce_rms_norm", x, residual, weight, bias, scale, *outs, *numbers, quant, max_sms, comm)
    return results


def _norm_results(x: Tensor, quant: str | None) -> tuple[Tensor, ...]:
    results = x.new_empty(x.shape, dtype=FP8 if quant else x.dtype), x.new_empty(x.shape)
    return (*results, x.new_empty(scale_shape(x, quant), dtype=torch.float32)) if quant in COMPUTED_SCALES else results


def _run_norm_of_group(*arguments: Any) -> tuple[Tensor, ...]:
    *values, group_name = arguments
    c10d: Any = dist.distributed_c10d
    results: tuple[Tensor, ...] = c10d._resolve_process_group(group_name).all_reduce_rms_norm(*contiguous(*values))
    return results


def _define_all() -> None:
    for name, parameters in PARAMETERS.items():
        _define_call(name, parameters)
    for name, results in (("", "Tensor, Tensor"), ("_scales", "Tensor, Tensor, Tensor")):
        fake = lambda x, *rest: _norm_results(x, rest[-3])  # noqa: E731
        define(f"all_reduce_rms_norm{name}", f"({_NORM}) -> ({results})", _run_norm, fake)
    schema = "(Tensor x, Tensor? residual, Tensor weight, float eps, float weight_bias, str group) -> (Tensor, Tensor)"
    define("all_reduce_rms_norm_of_group", schema, _run_norm_of_group, lambda x, *rest: _norm_results(x, None))
    # Of no device, Inductor would run it before what it has computed for the CPU, and free what that reads.
    schema = "(Tensor on, str comm) -> ()"
    define("barrier", schema, lambda on, comm: communicator(comm).dispatcher.now("barrier"), lambda on, comm: None)


_define_all()
