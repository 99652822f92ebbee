"""The collectives of a backend without native code: the same calls as `_native.Calls`, made of algorithms in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch

from commlib.backends.base import Backend
from commlib.collectives.reference import NARROW_INTEGERS
from commlib.collectives.spec import Collective
from commlib.native import library
from commlib.redops import CODES, redop_name

if TYPE_CHECKING:
    from commlib._native import Calls


def python_calls(backend: Backend, collectives: Mapping[str, Collective]) -> Calls:
    """Return calls that check their arguments as native ones do, then run what the plan names."""
    index = -1 if backend.device.type == "cpu" else backend.device.index
    reducing = " ".join(name for name, collective in collectives.items() if collective.reduces)
    rooted = " ".join(name for name, collective in collectives.items() if collective.rooted)
    checks = library.open_checks(backend.rank, backend.size, index, backend.recorder, reducing, rooted)
    halves = {name: _half(backend, collective) for name, collective in collectives.items()}
    message, reduce = halves.pop("send_recv"), halves["all_reduce"]
    halves |= {
        "send": lambda x, dst: message(x, dst, None, -1),
        "recv": lambda x, src: message(None, -1, x, src),
        "send_recv": message,
        "all_reduce_epilogue": lambda epilogue, x, tensors, numbers, sums: reduce(sums, "sum", None),
    }
    calls = {name: _call(backend, name, half, checks) for name, half in halves.items()}
    others = {"enqueue_barrier": calls["barrier"], "keep_versions": checks.keep_versions}
    return cast("Calls", SimpleNamespace(**calls, checks=checks, **others))


def _half(backend: Backend, collective: Collective) -> Callable[..., Any]:
    rows = collective.rows(backend.name).values()
    runs = {row.name: partial(row.run, backend) for row in rows if row.run is not None}

    def half(*given: Any) -> Any:
        return runs[backend.choose(collective.name, *kind_of(collective.name, given, backend.size))](*given)

    chosen = next(iter(runs.values())) if len(runs) == 1 else half
    return partial(_reduced, collective.name, chosen) if collective.reduces else chosen


def _reduced(name: str, half: Callable[..., Any], *given: Any) -> Any:
    """Run a reduction; an average of small integers in 32 bits, as their sums may not fit."""
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    if tensors[0].dtype not in NARROW_INTEGERS or "avg" not in [redop_name(x) for x in given if _is_redop(x)]:
        return half(*given)
    wide = [x.int() if isinstance(x, torch.Tensor) else x for x in given]
    half(*wide)
    at = -1 if name == "all_reduce" else 0  # among the tensors; the others are only read
    with torch.inference_mode():
        tensors[at].copy_([x for x in wide if isinstance(x, torch.Tensor)][at])
    return tensors[at] if name == "all_reduce" else None


def kind_of(op: str, given: Sequence[Any], world: int) -> tuple[int, str, str]:
    """Return what the plan chooses by, of a call with such arguments: its bytes, element type and reduction."""
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    sizes = [x.nbytes for x in tensors]
    num_bytes = min(sizes, default=0) * world if op in ("gather", "scatter") else max(sizes, default=0)
    dtype = str(tensors[0].dtype if tensors else torch.uint8).removeprefix("torch.")
    redop = next((x for x in given if not isinstance(x, torch.Tensor) and _is_redop(x)), "sum")
    return num_bytes, dtype, redop_name(redop)


def _is_redop(value: object) -> bool:
    return value.__hash__ is not None and value in CODES and not isinstance(value, (int, float))


def _call(backend: Backend, name: str, half: Callable[..., Any], checks: Calls) -> Callable[..., Any]:
    check = getattr(checks, name)
    leave = backend.recorder.leave if backend.recorder is not None else _nothing

    def call(*given: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # what stands for the check in a graph makes the call
            return getattr(checks, name)(*given)
        check(*given)  # from here on it is in the record
        try:
            return backend.run(name, partial(half, *given))
        finally:
            leave()

    return call


def _nothing() -> None:
    pass
