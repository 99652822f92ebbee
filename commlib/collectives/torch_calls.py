"""Collectives by a torch process group: the same calls as `_native.Calls`, made of the algorithms' halves in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch

from commlib.backends.base import Backend
from commlib.backends.torch_dist import TorchBackend
from commlib.collectives.reference import NARROW_INTEGERS
from commlib.collectives.signatures import kind_of
from commlib.collectives.spec import Collective
from commlib.errors import Unsupported
from commlib.native import library
from commlib.redops import TORCH_OPS, redop_name

REDUCIBLE = frozenset(
    getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
)


def refuses_reduction(dtype: torch.dtype, redop: str, size: int) -> str | None:
    if dtype not in REDUCIBLE:
        return f"torch.distributed does not reduce {dtype}"
    if redop in ("band", "bor", "bxor") and dtype.is_floating_point:
        return f"{redop} is for integers"
    if redop == "avg" and dtype in NARROW_INTEGERS:
        return f"torch.distributed's sums of {dtype} wrap before they are divided"
    return None


def refuses_lonely(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Engines do not send a rank's data to itself."""
    return "torch.distributed has no message to oneself" if size == 1 else None


def reduce_with(
    backend: TorchBackend, result: torch.Tensor, redop: Any, options: Any, start: Callable[[Any], Any]
) -> None:
    """Run a reduction, begun by start(options); an average is a sum divided afterwards, as gloo and MPI have none."""
    name = redop_name(redop)
    reason = refuses_reduction(result.dtype, name, backend.size)
    if reason:
        raise Unsupported(f"{reason}; convert the tensor first, or use the shm backend")
    if result.numel() == 0:
        return
    backend.options(options, reduceOp=TORCH_OPS["sum" if name == "avg" else name])
    backend.wait(start(options), f"{name} reduction")
    if name == "avg":
        if result.is_floating_point():
            result.div_(backend.size)
        else:
            result.div_(backend.size, rounding_mode="trunc")


def python_calls(backend: Backend, collectives: Mapping[str, Collective]) -> library.Calls:
    """Return calls that check their arguments as native ones do, then run what the plan names."""
    index = -1 if backend.device.type == "cpu" else backend.device.index
    reducing = " ".join(name for name, collective in collectives.items() if collective.reduces)
    rooted = " ".join(name for name, collective in collectives.items() if collective.rooted)
    checks = library.open_checks(backend.rank, backend.size, index, backend.recorder, reducing, rooted)
    runs = {name: _implementation(backend, collective) for name, collective in collectives.items()}
    message, reduce = runs.pop("send_recv"), runs["all_reduce"]
    runs |= {
        "send": lambda x, dst: message(x, dst, None, -1),
        "recv": lambda x, src: message(None, -1, x, src),
        "send_recv": message,
        "all_reduce_epilogue": lambda epilogue, x, tensors, numbers, sums: reduce(sums, "sum", None),
    }
    calls = {name: _call(backend, name, run, checks) for name, run in runs.items()}
    others = {"enqueue_barrier": calls["barrier"], "keep_versions": checks.keep_versions}
    return cast("library.Calls", SimpleNamespace(**calls, checks=checks, **others))


def _implementation(backend: Backend, collective: Collective) -> Callable[..., Any]:
    rows = collective.rows(backend.name).values()
    runs = {row.name: partial(row.run, backend) for row in rows if row.run is not None}

    def run(*arguments: Any) -> Any:
        return runs[backend.choose(collective.name, *kind_of(collective.name, arguments, backend.size))](*arguments)

    return next(iter(runs.values())) if len(runs) == 1 else run


def _call(backend: Backend, name: str, run: Callable[..., Any], checks: library.Calls) -> Callable[..., Any]:
    check = getattr(checks, name)
    leave = backend.recorder.leave if backend.recorder is not None else lambda: None

    def call(*arguments: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # what stands for the check in a graph makes the call
            return getattr(checks, name)(*arguments)
        check(*arguments)  # from here on it is in the record
        try:
            return backend.run(name, partial(run, *arguments))
        finally:
            leave()

    return call
