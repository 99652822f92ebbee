"""What each native call takes: the one table of names, types, and of what is read and written.

torch.compile's operators, COMMLIB_GUARD, COMMLIB_LOG and the choice of a plan are made from it, and a test compares it
with the native library. `max_sms` may follow the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from commlib.redops import redop_name


@dataclass(frozen=True)
class Parameter:
    """One argument; `type` is written as in the schemas of torch's operators."""

    name: str
    type: str = "Tensor"
    reads: bool = False
    writes: bool = False


@dataclass(frozen=True)
class Signature:
    """The arguments of one call.

    `root` names the argument with the rank of which alone the tensors are `at_root`. Where `in_place` says so, a call
    without `out` writes `x`. `equal` means that all ranks get the same result, `pair` that not all ranks make the call.
    """

    parameters: tuple[Parameter, ...]
    root: str = ""
    at_root: str = ""  # reads or writes
    in_place: bool = False
    equal: bool = False
    pair: bool = False

    def place(self, name: str) -> int:
        """Return where an argument stands, -1 for one that the call does not take."""
        return next((at for at, parameter in enumerate(self.parameters) if parameter.name == name), -1)

    def tensors(self, access: str, arguments: Sequence[Any], rank: int) -> list[tuple[int, torch.Tensor]]:
        if self.at_root == access and arguments[self.place(self.root)] != rank:
            return []
        places = [at for at, parameter in enumerate(self.parameters) if getattr(parameter, access)]
        if self.in_place and access == "writes":
            out = self.place("out")
            places = [self.place("x") if arguments[out] is None else out]
        return [(at, arguments[at]) for at in places if isinstance(arguments[at], torch.Tensor)]


_X, _OUT = Parameter("x", reads=True), Parameter("out", writes=True)
_OPTIONAL_OUT = Parameter("out", "Tensor?", writes=True)
_OP, _SRC, _DST = Parameter("op", "str"), Parameter("src", "int"), Parameter("dst", "int")
_SIZES = Parameter("sizes", "SymInt[]")
_SPLITS = Parameter("out_splits", "SymInt[]?"), Parameter("in_splits", "SymInt[]?")
_NORM = (
    _X,
    Parameter("residual", "Tensor?", reads=True),
    Parameter("weight", reads=True),
    Parameter("bias", "Tensor?", reads=True),
    Parameter("scale", "Tensor?", reads=True),
    _OUT,
    Parameter("residual_out", writes=True),
    Parameter("scale_out", "Tensor?", writes=True),
    Parameter("eps", "float"),
    Parameter("weight_bias", "float"),
    Parameter("center", "bool"),
    Parameter("quant", "str?"),
)
_EPILOGUE = (
    Parameter("epilogue", "Any"),
    _X,
    Parameter("tensors", "Tensor?[]"),
    Parameter("numbers", "float[]"),
    Parameter("sums", "Tensor?", writes=True),
)
SIGNATURES = {
    "all_reduce": Signature((_X, _OP, _OPTIONAL_OUT), in_place=True, equal=True),
    "all_reduce_rms_norm": Signature(_NORM, equal=True),
    "all_reduce_epilogue": Signature(_EPILOGUE),
    "reduce": Signature((_OPTIONAL_OUT, _X, _DST, _OP), root="dst", at_root="writes", in_place=True),
    "broadcast": Signature((Parameter("x", reads=True, writes=True), _SRC), root="src", at_root="reads", equal=True),
    "all_gather": Signature((_OUT, _X), equal=True),
    "all_gatherv": Signature((_OUT, _X, _SIZES), equal=True),
    "reduce_scatter": Signature((_OUT, _X, _OP)),
    "reduce_scatterv": Signature((_OUT, _X, _SIZES, _OP)),
    "all_to_all": Signature((_OUT, _X)),
    "all_to_others": Signature((_OUT, _X)),
    "all_to_allv": Signature((_OUT, _X, *_SPLITS)),
    "gather": Signature((_OPTIONAL_OUT, _X, _DST), root="dst", at_root="writes"),
    "scatter": Signature((_OPTIONAL_OUT, Parameter("x", "Tensor?", reads=True), _SRC), root="src", at_root="reads"),
    "send": Signature((_X, _DST), pair=True),
    "recv": Signature((Parameter("x", writes=True), _SRC), pair=True),
    "send_recv": Signature((_X, _DST, _OUT, _SRC), pair=True),
    "barrier": Signature(()),
    "enqueue_barrier": Signature(()),
}


def kind_of(name: str, arguments: Sequence[Any], world: int) -> tuple[int, str, str]:
    """Return what the plan chooses by, of a call with such arguments: its bytes, element type and reduction."""
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    sizes = [x.nbytes for x in tensors]
    num_bytes = min(sizes, default=0) * world if name in ("gather", "scatter") else max(sizes, default=0)
    dtype = str(tensors[0].dtype if tensors else torch.uint8).removeprefix("torch.")
    op = SIGNATURES[name].place("op")
    return num_bytes, dtype, "sum" if op < 0 else redop_name(arguments[op])
