"""Collectives in torch.compile: operators that stand for the native calls in a graph. Eager calls know nothing of them.

Where Dynamo traces a call it meets a method of `_native.Calls`, and takes the function here instead, which torch's
`substitute_in_graph` registers. That puts an operator into the graph, which returns a new tensor, and a copy to where
the call puts its result; torch's passes drop the copy of what is no input. The operators are ordered among each other
and none is dropped, so all ranks make the same calls in the same order. A graph names its communicator by a string.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from itertools import count
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary, finalize

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

from commlib.collectives.norms import FP8, OWN_SCALES, scale_shape
from commlib.collectives.signatures import SIGNATURES
from commlib.errors import Closed
from commlib.native import library
from commlib.redops import TORCH_OPS

if TYPE_CHECKING:
    from commlib._native import Calls
    from commlib.communicator import Communicator

_NUMBERS = count()
_KNOWN: dict[int, tuple[str, int, str]] = {}  # a communicator's name, rank and device, by the identity of its calls
_COMMUNICATORS: WeakValueDictionary[str, Communicator] = WeakValueDictionary()


def register(comm: Communicator, calls: Calls) -> tuple[str, Callable[[], object]]:
    """Give a communicator the name by which graphs know it; return that, and what takes it back before the calls go."""
    name = f"commlib-{next(_NUMBERS)}"
    _COMMUNICATORS[name] = comm
    _KNOWN[id(calls)] = name, comm.rank, str(comm.device)
    return name, finalize(comm, _KNOWN.pop, id(calls))


def communicator(name: str) -> Communicator:
    """Return the communicator that a graph knows by this name."""
    found = _COMMUNICATORS.get(name)
    if found is None:
        raise Closed("the communicator of this compiled graph is gone; keep it as long as the graph is used")
    return found


# --- operators --------------------------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library("commlib", "FRAGMENT")
_DEFINED: list[str] = []
_ORDERED: set[str] = set()  # what Dynamo was told of
_RUNS: dict[str, Callable[..., Any]] = {}
# Their operators are (Tensor out, …, int max_sms, str comm) -> Tensor; a call without a limit has 0.
_OTHERS = ("all_reduce_rms_norm", "all_to_others", "send_recv")
_WITH_OUT = [name for name, call in SIGNATURES.items() if call.place("out") >= 0 and name not in _OTHERS]


def _define(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    _LIBRARY.define(name + schema)
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"commlib::{name}", fake, lib=_LIBRARY)
    _DEFINED.append(name)


def define(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Define an operator that makes a call, and return it; one that is there already runs this from now on."""
    known = name in _RUNS
    _RUNS[name] = run
    if not known:
        _define(name, schema, lambda *given: _RUNS[name](*given), fake)  # noqa: PLW0108 - as it is then
        if _ORDERED:
            _order(name)
    return getattr(_OPS, name)


def _with_out(name: str) -> Callable[..., Tensor]:
    def run(out: Tensor, *given: Any) -> Tensor:
        made = _like(out)
        _call(name, made, *given)
        return made

    return run


def _call(name: str, *given: Any) -> Any:
    """Make a call as an operator is told to: what it is given, max_sms, and the communicator's name."""
    *arguments, max_sms, named = given
    dispatcher = communicator(named).dispatcher
    limit = dispatcher.limit(max_sms) if max_sms else ()
    return dispatcher.now(name, *contiguous(*arguments), *limit)


def contiguous(*given: Any) -> list[Any]:
    """Return what a call takes: of what an operator with an effect reads, Inductor chooses the strides anew."""
    return [x.contiguous() if isinstance(x, Tensor) else x for x in given]


def _like(out: Tensor) -> Tensor:
    return torch.empty_like(out, memory_format=torch.contiguous_format)


def _run_all_reduce(out: Tensor, x: Tensor, op: str, *on: Any) -> Tensor:
    made: Tensor = _call("all_reduce", x, op, _like(out), *on)
    return made


def _run_broadcast(x: Tensor, *given: Any) -> Tensor:
    made = x.clone(memory_format=torch.contiguous_format)
    _call("broadcast", made, *given)
    return made


def _run_recv(x: Tensor, src: int, comm: str) -> Tensor:
    return communicator(comm).recv(_like(x), src)


def _run_send(x: Tensor, dst: int, comm: str) -> None:
    communicator(comm).send(x.contiguous(), dst)


def _run_send_recv(x: Tensor, dst: int, out: Tensor, src: int, comm: str) -> Tensor:
    return communicator(comm).send_recv(x.contiguous(), dst, _like(out), src)


def _run_barrier(on: Tensor, comm: str) -> None:
    communicator(comm).barrier()


def _run_norm(x: Tensor, *given: Any) -> tuple[Tensor, ...]:
    *tensors, eps, weight_bias, center, quant, max_sms, comm = given
    results = _norm_results(x, quant)
    outs = (*results, None)[:3]
    _call("all_reduce_rms_norm", x, *tensors, *outs, eps, weight_bias, center, quant, max_sms, comm)
    return results


def _norm_results(x: Tensor, quant: str | None) -> tuple[Tensor, ...]:
    results = x.new_empty(x.shape, dtype=FP8 if quant else x.dtype), x.new_empty(x.shape)
    return (*results, x.new_empty(scale_shape(x, quant), dtype=torch.float32)) if quant in OWN_SCALES else results


def _run_norm_of_group(x: Tensor, *given: Any) -> tuple[Tensor, ...]:
    *arguments, name = given
    c10d: Any = dist.distributed_c10d
    found: tuple[Tensor, ...] = c10d._resolve_process_group(name).all_reduce_rms_norm(*contiguous(x, *arguments))
    return found


def _define_all() -> None:
    for name in _WITH_OUT:
        schema = SIGNATURES[name].inputs
        run = _run_all_reduce if name == "all_reduce" else _with_out(name)
        _define(name, f"(Tensor out, {schema}, int max_sms, str comm) -> Tensor", run, lambda out, *given: _like(out))
    schema = "(Tensor x, int src, int max_sms, str comm) -> Tensor"
    _define("broadcast", schema, _run_broadcast, lambda x, *given: _like(x))
    _define("recv", "(Tensor x, int src, str comm) -> Tensor", _run_recv, lambda x, src, comm: _like(x))
    both = "(Tensor x, int dst, Tensor out, int src, str comm) -> Tensor"
    _define("send_recv", both, _run_send_recv, lambda x, dst, out, src, comm: _like(out))
    _define("send", "(Tensor x, int dst, str comm) -> ()", _run_send, lambda x, dst, comm: None)
    for name, results in (("", "Tensor, Tensor"), ("_scales", "Tensor, Tensor, Tensor")):
        schema = f"({SIGNATURES['all_reduce_rms_norm'].inputs}, int max_sms, str comm) -> ({results})"
        _define(f"all_reduce_rms_norm{name}", schema, _run_norm, lambda x, *given: _norm_results(x, given[-3]))
    schema = "(Tensor x, Tensor? residual, Tensor weight, float eps, float weight_bias, str group) -> (Tensor, Tensor)"
    _define("all_reduce_rms_norm_of_group", schema, _run_norm_of_group, lambda x, *given: _norm_results(x, None))
    # Of no device, Inductor would run it before what it has computed for the CPU, and free what that reads.
    _define("barrier", "(Tensor on, str comm) -> ()", _run_barrier, lambda on, comm: None)


_define_all()
_OPS = torch.ops.commlib


# --- what Dynamo traces in place of the native calls ------------------------------------------------------------------

_TRACED: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C")


def _in_place_of(original: Callable[..., Any]) -> Callable[[F], F]:
    def take(traced: F) -> F:
        _TRACED.append((original, traced))
        return traced

    return take


def _name(calls: Calls) -> str:
    return _KNOWN[id(calls)][0]


def _redop(op: Any) -> str:
    """Return the name of a reduction; what is none is refused by the call itself."""
    for name, theirs in TORCH_OPS.items():  # Dynamo does not hash torch's
        if op is theirs:
            return name
    return str(op)


@_in_place_of(library.Calls.all_reduce)
def _all_reduce(calls: Calls, x: Tensor, op: Any, out: Tensor | None, max_sms: int = 0) -> Tensor:
    target = x if out is None else out
    return target.copy_(_OPS.all_reduce(target, x, _redop(op), max_sms, _name(calls)))


@_in_place_of(library.Calls.all_reduce_rms_norm)
def _all_reduce_rms_norm(calls: Calls, *given: Any) -> None:
    tensors, outs, how, limit = given[:5], given[5:8], given[8:12], given[12:] or (0,)
    op = _OPS.all_reduce_rms_norm if outs[-1] is None else _OPS.all_reduce_rms_norm_scales
    results = op(*tensors, *how, *limit, _name(calls))
    for target, result in zip(outs, results, strict=False):
        target.copy_(result)


@_in_place_of(library.Calls.reduce)
def _reduce(calls: Calls, out: Tensor | None, x: Tensor, dst: int, op: Any, max_sms: int = 0) -> None:
    target, (name, rank, _) = x if out is None else out, _KNOWN[id(calls)]
    result = _OPS.reduce(target, x, dst, _redop(op), max_sms, name)
    if rank == dst:
        target.copy_(result)


@_in_place_of(library.Calls.all_gather)
def _all_gather(calls: Calls, out: Tensor, x: Tensor, max_sms: int = 0) -> None:
    out.copy_(_OPS.all_gather(out, x, max_sms, _name(calls)))


@_in_place_of(library.Calls.all_gatherv)
def _all_gatherv(calls: Calls, out: Tensor, x: Tensor, sizes: Sequence[int], max_sms: int = 0) -> None:
    out.copy_(_OPS.all_gatherv(out, x, list(sizes), max_sms, _name(calls)))


@_in_place_of(library.Calls.reduce_scatter)
def _reduce_scatter(calls: Calls, out: Tensor, x: Tensor, op: Any, max_sms: int = 0) -> None:
    out.copy_(_OPS.reduce_scatter(out, x, _redop(op), max_sms, _name(calls)))


@_in_place_of(library.Calls.reduce_scatterv)
def _reduce_scatterv(calls: Calls, out: Tensor, x: Tensor, sizes: Sequence[int], op: Any, max_sms: int = 0) -> None:
    out.copy_(_OPS.reduce_scatterv(out, x, list(sizes), _redop(op), max_sms, _name(calls)))


@_in_place_of(library.Calls.all_to_all)
def _all_to_all(calls: Calls, out: Tensor, x: Tensor, max_sms: int = 0) -> None:
    out.copy_(_OPS.all_to_all(out, x, max_sms, _name(calls)))


@_in_place_of(library.Calls.all_to_allv)
def _all_to_allv(calls: Calls, out: Tensor, x: Tensor, out_splits: Any, in_splits: Any, max_sms: int = 0) -> None:
    splits = [None if given is None else list(given) for given in (out_splits, in_splits)]
    out.copy_(_OPS.all_to_allv(out, x, *splits, max_sms, _name(calls)))


@_in_place_of(library.Calls.broadcast)
def _broadcast(calls: Calls, x: Tensor, src: int, max_sms: int = 0) -> None:
    x.copy_(_OPS.broadcast(x, src, max_sms, _name(calls)))


@_in_place_of(library.Calls.gather)
def _gather(calls: Calls, out: Tensor | None, x: Tensor, dst: int, max_sms: int = 0) -> None:
    result = _OPS.gather(x if out is None else out, x, dst, max_sms, _name(calls))
    if out is not None:
        out.copy_(result)


@_in_place_of(library.Calls.scatter)
def _scatter(calls: Calls, out: Tensor | None, x: Tensor | None, src: int, max_sms: int = 0) -> None:
    if out is None:
        raise ValueError(f"scatter: a rank that receives from rank {src} needs out=")
    out.copy_(_OPS.scatter(out, x, src, max_sms, _name(calls)))


@_in_place_of(library.Calls.send)
def _send(calls: Calls, x: Tensor, dst: int) -> None:
    _OPS.send(x, dst, _name(calls))


@_in_place_of(library.Calls.recv)
def _recv(calls: Calls, x: Tensor, src: int) -> None:
    x.copy_(_OPS.recv(x, src, _name(calls)))


@_in_place_of(library.Calls.send_recv)
def _send_recv(calls: Calls, x: Tensor, dst: int, out: Tensor, src: int) -> None:
    out.copy_(_OPS.send_recv(x, dst, out, src, _name(calls)))


@_in_place_of(library.Calls.barrier)
def _barrier(calls: Calls) -> None:
    name, _, device = _KNOWN[id(calls)]
    _OPS.barrier(torch.empty(0, device=device), name)


@_in_place_of(library.check_tensor)
def _check_tensor(given: object, argument: str, function: str) -> None:
    """Let it pass: what Dynamo traces as a tensor is one."""


def _substitute_methods() -> None:
    """Do for methods what torch before 2.13 does for functions only."""
    from torch._dynamo.variables.functions import UserFunctionVariable
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    traced_by_name: dict[str, Any] = {traced.__name__.lstrip("_"): traced for _, traced in _TRACED}
    known: Any = UserDefinedObjectVariable.call_method

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if isinstance(self.value, library.Calls):
            return UserFunctionVariable(traced_by_name[name]).call_function(tx, [self, *args], kwargs)
        return known(self, tx, name, args, kwargs)

    UserDefinedObjectVariable.call_method = call_method  # type: ignore[method-assign]


def _teach_dynamo() -> None:
    """Teach it, or say that this torch cannot be taught: whoever imports Dynamo may compile other things."""
    try:
        _substitute_and_order()
    except Exception as error:  # any: these parts of torch promise nothing
        why = f"torch.compile cannot take commlib's collectives with torch {torch.__version__}"
        logging.getLogger("commlib").warning("%s (%s: %s); call them outside of it", why, type(error).__name__, error)


def _substitute_and_order() -> None:
    for original, traced in _TRACED:
        torch.compiler.substitute_in_graph(original, skip_signature_check=True)(traced)
    if torch.__version__ < "2.13":
        _substitute_methods()
    for name in _DEFINED:
        _order(name)


def _order(name: str) -> None:
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    _register_effectful_op(getattr(_OPS, name).default, _EffectType.ORDERED)
    _ORDERED.add(name)


def untraced(kind: type[C]) -> type[C]:
    """Have Dynamo run a class's methods as they are: C++ calls them in the middle of programs that it compiles."""
    as_it_is = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            set_code_exec_strategy(method.__code__, as_it_is)
    return kind


class _WhenDynamoComes(MetaPathFinder, Loader):
    """Teaches Dynamo when a program imports it: that takes seconds, which programs that compile nothing do not pay."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the module as others do, and load it in their place."""
        if fullname != "torch._dynamo":
            return None
        sys.meta_path.remove(self)
        found = PathFinder.find_spec(fullname, path)
        if found is not None and found.loader is not None:
            self._loader, found.loader = found.loader, self
        return found

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make it as its own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load it; then it can be taught."""
        self._loader.exec_module(module)
        _teach_dynamo()


if "torch._dynamo" in sys.modules:
    _teach_dynamo()
else:
    sys.meta_path.insert(0, _WhenDynamoComes())
