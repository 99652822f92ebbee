"""Calls that are handed to an engine of torch's own: their record, for `commlib debug`, until that engine has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from commlib.redops import CODES
from commlib.torch_backend.engine import OPS
from commlib.torch_backend.forms import FORMS

if TYPE_CHECKING:
    from commlib._native import Recorder


def enter(record: Recorder, name: str, arguments: tuple[Any, ...]) -> None:
    """Keep a call of the process group's method `name`, whose last argument are its options."""
    first: Any = next((x for x in arguments[:-1] if _tensor(x) is not None), None)
    x, opts = _tensor(first), arguments[-1]
    op = OPS.get(hash(opts.reduceOp)) if hasattr(opts, "reduceOp") else None
    dtype = "uint8" if x is None else str(x.dtype).removeprefix("torch.")
    count, redop = 0 if x is None else x.numel(), -1 if op is None else CODES[op]
    record.enter(FORMS[name].call, dtype, count, redop, getattr(opts, "rootRank", -1))


def _tensor(argument: Any) -> Tensor | None:
    while isinstance(argument, (list, tuple)) and argument:
        argument = argument[0]
    return argument if isinstance(argument, Tensor) else None
