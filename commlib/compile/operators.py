"""The operators that stand for calls in a graph of torch.compile, and what Dynamo traces in place of a native call.

Each operator returns a new tensor, and writes none; what is traced copies that to where the call puts it, and torch's
passes drop the copy of what is no input of the graph. Operators are ordered among each other and none is dropped, so
all ranks make the same calls in the same order. A graph names its communicator by a string. Eager calls do not use
them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from itertools import count
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakValueDictionary, finalize

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

from commlib.collectives.all_reduce_rms_norm import COMPUTED_SCALES, FP8, scale_shape
from commlib.collectives.signatures import SIGNATURES
from commlib.core.dispatch import Dispatching
from commlib.errors import Closed
from commlib.native import library
from commlib.redops import TORCH_OPS

if TYPE_CHECKING:
    from commlib._native import Calls

C = TypeVar("C")

COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "all_gatherv", "reduce_scatter", "reduce_scatterv"),
    *("all_to_all", "all_to_allv", "gather", "scatter"),
)
MESSAGES = ("send", "recv", "send_recv")

COMMUNICATORS: WeakValueDictionary[str, Dispatching] = WeakValueDictionary()
OPS = torch.ops.commlib
_LIBRARY = torch.library.Library("commlib", "FRAGMENT")
_RUNS: dict[str, Callable[..., Any]] = {}
_ORDERED: set[str] = set()
_NUMBERS = count()
_KNOWN: dict[int, tuple[str, int, str]] = {}  # a communicator's name, rank and device, by the identity of its calls


def register(comm: Dispatching, calls: Calls) -> tuple[str, Callable[[], object]]:
    """Give a communicator the name by which graphs know it; return that, and what takes it back before the calls go."""
    name = f"commlib-{next(_NUMBERS)}"
    COMMUNICATORS[name] = comm
    _KNOWN[id(calls)] = name, comm.rank, str(comm.device)
    return name, finalize(comm, _KNOWN.pop, id(calls))


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


def _define_call(name: str) -> Callable[..., Tensor | None]:
    """Define the operator of a call that writes one tensor, `out`, x of a broadcast, or none; return what is traced."""
    parameters = SIGNATURES[name].parameters
    names, kinds = [parameter.name for parameter in parameters], [parameter.type for parameter in parameters]
    written = names.index("out") if "out" in names else 0
    limits = 0 if name in MESSAGES else 1

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
        out: Tensor = arguments[written]
        return None if name == "send" else torch.empty_like(out, memory_format=torch.contiguous_format)

    def traced(calls: Calls, *arguments: Any) -> Tensor | None:
        graph_name, rank, _ = _KNOWN[id(calls)]
        values = [_plain(kind, value) for kind, value in zip(kinds, arguments, strict=False)]  # Dynamo knows strings
        if name == "send":
            OPS.send(*values, graph_name)
            return None
        target: Tensor | None = values[written]
        if target is None:
            target = values[written] = values[names.index("x")]
        if target is None:
            raise ValueError(f"{name}: a rank that receives from rank {values[names.index('src')]} needs out=")
        limit = (*arguments[len(names) :], 0)[:limits]
        result = getattr(OPS, name)(*values, *limit, graph_name)
        if name not in ("reduce", "gather") or rank == values[names.index("dst")]:
            target.copy_(result)
        return target

    # An operator always gets the `out` that its result is like.
    taken = [f"{'Tensor' if x.name == 'out' else x.type} {x.name}" for x in parameters]
    taken += [*("int max_sms",)[:limits], "str comm"]
    define(name, f"({', '.join(taken)}) -> {'()' if name == 'send' else 'Tensor'}", run, fake)
    return traced


def _call(name: str, *arguments: Any) -> None:
    *values, max_sms, graph_name = arguments
    dispatcher = communicator(graph_name).dispatcher
    limit = dispatcher.limit(max_sms) if max_sms else ()
    dispatcher.now(name, *values, *limit)


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


def _plain(kind: str, value: Any) -> Any:
    if kind != "str":
        return list(value) if kind.startswith("SymInt[]") and value is not None else value
    for name, torchs in TORCH_OPS.items():  # Dynamo does not hash torch's
        if value is torchs:
            return name
    return str(value)  # what is no reduction is refused by the call itself


def _all_reduce_rms_norm(calls: Calls, *arguments: Any) -> None:
    tensors, outs, how, limit = arguments[:5], arguments[5:8], arguments[8:12], arguments[12:] or (0,)
    op = OPS.all_reduce_rms_norm if outs[-1] is None else OPS.all_reduce_rms_norm_scales
    results = op(*tensors, *how, *limit, _KNOWN[id(calls)][0])
    for target, result in zip(outs, results, strict=False):
        target.copy_(result)


def _barrier(calls: Calls) -> None:
    name, _, device = _KNOWN[id(calls)]
    OPS.barrier(torch.empty(0, device=device), name)


def _define_all() -> dict[str, Callable[..., Any]]:
    """Define the operators; return what is traced for each native call."""
    traced = {name: _define_call(name) for name in (*COLLECTIVES, *MESSAGES)}
    # An operator takes all but what is only written.
    taken = [f"{x.type} {x.name}" for x in SIGNATURES["all_reduce_rms_norm"].parameters if x.reads or not x.writes]
    schema = ", ".join([*taken, "int max_sms", "str comm"])
    for name, results in (("", "Tensor, Tensor"), ("_scales", "Tensor, Tensor, Tensor")):
        fake = lambda x, *rest: _norm_results(x, rest[-3])  # noqa: E731
        define(f"all_reduce_rms_norm{name}", f"({schema}) -> ({results})", _run_norm, fake)
    schema = "(Tensor x, Tensor? residual, Tensor weight, float eps, float weight_bias, str group) -> (Tensor, Tensor)"
    define("all_reduce_rms_norm_of_group", schema, _run_norm_of_group, lambda x, *rest: _norm_results(x, None))
    # Of no device, Inductor would run it before what it has computed for the CPU, and free what that reads.
    schema = "(Tensor on, str comm) -> ()"
    define("barrier", schema, lambda on, comm: communicator(comm).dispatcher.now("barrier"), lambda on, comm: None)
    return {**traced, "all_reduce_rms_norm": _all_reduce_rms_norm, "barrier": _barrier}


_TRACED = _define_all()


# --- how Dynamo learns of it ------------------------------------------------------------------------------------------


def _register_with_dynamo() -> None:
    """Register, or log that this torch cannot do it: whoever imports Dynamo may compile other things."""
    try:
        for name, traced in _TRACED.items():
            _substitute(getattr(library.Calls, name), traced)
        _substitute(library.check_tensor, lambda x, argument, function: None)  # what Dynamo traces as a tensor is one
        if torch.__version__ < "2.13":
            _substitute_methods()
        order()
    except Exception as error:  # any: these parts of torch promise nothing
        why = f"torch.compile cannot take commlib's collectives with torch {torch.__version__}"
        logging.getLogger("commlib").warning("%s (%s: %s); call them outside of it", why, type(error).__name__, error)


def _substitute(original: Any, traced: Callable[..., Any]) -> None:
    torch.compiler.substitute_in_graph(original, skip_signature_check=True)(traced)


def _substitute_methods() -> None:
    """Do for methods what torch before 2.13 does for functions only."""
    from torch._dynamo.variables.functions import UserFunctionVariable
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    original: Any = UserDefinedObjectVariable.call_method

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if isinstance(self.value, library.Calls):
            return UserFunctionVariable(cast("FunctionType", _TRACED[name])).call_function(tx, [self, *args], kwargs)
        return original(self, tx, name, args, kwargs)

    UserDefinedObjectVariable.call_method = call_method  # type: ignore[method-assign]


def untraced(kind: type[C]) -> type[C]:
    """Have Dynamo run a class's methods as they are: C++ calls them in the middle of programs that it compiles."""
    as_it_is = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            set_code_exec_strategy(method.__code__, as_it_is)
    return kind


class _DynamoImport(MetaPathFinder):
    """Registers when a program imports Dynamo: that takes seconds, which programs that compile nothing do not pay."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the module as others do; its loader then registers, too."""
        if fullname != "torch._dynamo":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                _register_with_dynamo()

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


if "torch._dynamo" in sys.modules:
    _register_with_dynamo()
else:
    sys.meta_path.insert(0, _DynamoImport())
