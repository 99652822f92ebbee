"""What the torch_direct algorithms share: element types an engine lacks, and reductions it lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from commlib.backends.torch_dist import TorchBackend
from commlib.errors import Unsupported
from commlib.redops import TORCH_OPS, redop_name

REDUCIBLE = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
    }
)


def refuses_reduction(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Why torch.distributed cannot reduce this, or None."""
    if dtype not in REDUCIBLE:
        return f"torch.distributed does not reduce {dtype}"
    if redop in ("band", "bor", "bxor") and dtype.is_floating_point:
        return f"{redop} is for integers"
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
