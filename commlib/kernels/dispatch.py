"""Who takes a kernel's tensors: native code as they are, or torch's dispatcher where they are not what they seem."""

from __future__ import annotations

from typing import NoReturn, TypeAlias

import torch
from torch import Tensor

from commlib.native import library

Scale: TypeAlias = "float | Tensor | None"

# Subclasses go through torch's dispatcher: they are fake, functional or wrap what native code cannot see. A test
# `type(tensor) in PLAIN` costs 30 ns, so kernels write one for each tensor: a loop over them costs ten times that.
PLAIN = frozenset({Tensor, torch.nn.Parameter})
PLAIN_OR_NONE = PLAIN | {type(None)}

# Each dot costs the short path 30 ns.
compiling = torch.compiler.is_dynamo_compiling
grad_enabled = torch.is_grad_enabled


def check_tensors(kernel: str, **tensors: object) -> None:
    """Refuse what is no tensor; ask only where a type is not PLAIN."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            library.check_tensor(tensor, name, kernel)  # raises, with a remedy


def refuse_gradients(kernel: str, names: str) -> NoReturn:
    """Say that a tensor requires a gradient, which no kernel has."""
    raise ValueError(
        f"{names} requires a gradient, but {kernel} has no backward; call it under torch.no_grad(), or detach them"
    )


def apart(scale: Scale) -> tuple[Tensor | None, float | None]:
    """Return a scale as a tensor and as a number, one of which is None: an operator takes no "number or tensor"."""
    if scale is None or isinstance(scale, Tensor):
        return scale, None
    return None, float(scale)


def on_meta(*arguments: object) -> bool:
    """Return whether tensors have shapes only, so that there is nothing to do; ask when native code refused."""
    devices = [tensor.device for tensor in arguments if isinstance(tensor, Tensor)]
    if not any(device.type == "meta" for device in devices):
        return False
    if len(set(devices)) > 1:
        names = ", ".join(map(str, devices))
        raise ValueError(f"the tensors are on different devices ({names}); move them to one") from None
    return True
