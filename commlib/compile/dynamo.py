"""What Dynamo traces in place of a native call: an operator, and a copy of its result to where the call puts it.

torch's `substitute_in_graph` registers a function for each method of `_native.Calls`; torch's passes drop the copy of
what is no input of the graph.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from itertools import count
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import finalize

import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

from commlib.compile.operators import COMMUNICATORS, MESSAGES, OPS, PARAMETERS, order
from commlib.core.dispatch import Dispatching
from commlib.native import library
from commlib.redops import TORCH_OPS

if TYPE_CHECKING:
    from commlib._native import Calls

_NUMBERS = count()
_KNOWN: dict[int, tuple[str, int, str]] = {}  # a communicator's name, rank and device, by the identity of its calls
C = TypeVar("C")


def register(comm: Dispatching, calls: Calls) -> tuple[str, Callable[[], object]]:
    """Give a communicator the name by which graphs know it; return that, and what takes it back before the calls go."""
    name = f"commlib-{next(_NUMBERS)}"
    COMMUNICATORS[name] = comm
    _KNOWN[id(calls)] = name, comm.rank, str(comm.device)
    return name, finalize(comm, _KNOWN.pop, id(calls))


# --- what is traced ---------------------------------------------------------------------------------------------------


def _call(name: str, parameters: tuple[str, ...]) -> Callable[..., Tensor | None]:
    """Return what is traced for a call that writes one tensor: `out`, x of a broadcast, or none."""
    names = [parameter.split()[1] for parameter in parameters]
    written = names.index("out") if "out" in names else 0
    limits = 0 if name in MESSAGES else 1

    def traced(calls: Calls, *arguments: Any) -> Tensor | None:
        graph_name, rank, _ = _KNOWN[id(calls)]
        values = [_plain(parameter, value) for parameter, value in zip(parameters, arguments, strict=False)]
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

    return traced


def _plain(parameter: str, value: Any) -> Any:
    """Return what an operator takes for an argument of a call."""
    if parameter != "str op":
        return list(value) if parameter.startswith("SymInt[]") and value is not None else value
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


def _check_tensor(x: object, argument: str, function: str) -> None:
    """Let it pass: what Dynamo traces as a tensor is one."""


_TRACED = {name: _call(name, parameters) for name, parameters in PARAMETERS.items()}
_TRACED |= {"all_reduce_rms_norm": _all_reduce_rms_norm, "barrier": _barrier}


# --- how Dynamo learns of it ------------------------------------------------------------------------------------------


def _register_with_dynamo() -> None:
    """Register, or log that this torch cannot do it: whoever imports Dynamo may compile other things."""
    try:
        for name, traced in _TRACED.items():
            _substitute(getattr(library.Calls, name), traced)
        _substitute(library.check_tensor, _check_tensor)
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


class _DynamoImport(MetaPathFinder, Loader):
    """Registers when a program imports Dynamo: that takes seconds, which programs that compile nothing do not pay."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the module as others do, and load it in their place."""
        if fullname != "torch._dynamo":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make it as its loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load it, and register."""
        self._loader.exec_module(module)
        _register_with_dynamo()


if "torch._dynamo" in sys.modules:
    _register_with_dynamo()
else:
    sys.meta_path.insert(0, _DynamoImport())
