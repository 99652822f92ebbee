"""What GPUs and NCCL's own calls cannot do: types and reductions NCCL lacks, kernels that are not safe yet."""

from __future__ import annotations

import torch

from commlib.collectives.reference import NARROW_INTEGERS

_LACKS = frozenset({torch.int16, torch.uint16, torch.bool})
SAFE_SYMMETRIC = (2, 30, 7)  # before it, symmetric kernels may read what is not written yet


def refuses_before_hopper(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Why this GPU has no bulk copies, or None."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0):
        return f"{torch.cuda.get_device_name()} has no bulk copies; GPUs from Hopper on do"
    return None


def refuses_lamport(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Why packets need flags for this, or None: without them, one NaN says that a slot is empty."""
    of_floats = (dtype.is_floating_point and dtype.itemsize <= 4) or dtype == torch.complex64
    return None if of_floats and redop == "sum" else "packets without flags are for sums of floats of 4 bytes or fewer"


def refuses_nccl(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Why NCCL cannot reduce this, or None."""
    if dtype in _LACKS or redop in ("band", "bor", "bxor"):
        return f"NCCL does not reduce {dtype} by {redop}"
    if redop == "avg" and dtype in NARROW_INTEGERS:
        return f"NCCL's sums of {dtype} wrap before they are divided"
    return None


def refuses_old_nccl(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Why NCCL's symmetric kernels cannot be trusted here, or None."""
    version = torch.cuda.nccl.version() if torch.cuda.is_available() else ()
    if version and version < SAFE_SYMMETRIC:
        return f"NCCL {'.'.join(map(str, version))} may read symmetric tensors too early; 2.30.7 does not"
    return None


def refuses_nccl_symmetric(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Why this reduction cannot run on symmetric tensors, or None."""
    return refuses_nccl(dtype, redop, size) or refuses_old_nccl(dtype, redop, size)
