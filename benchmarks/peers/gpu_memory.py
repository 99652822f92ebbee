"""Tensors on memory that another library allocated on this GPU."""

from __future__ import annotations

import torch


class _Bytes:
    """Memory that numba's interface describes; torch makes a tensor of it without a copy."""

    def __init__(self, address: int, num_bytes: int) -> None:
        described = {"shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "version": 2}
        self.__cuda_array_interface__ = described


def tensor_at(address: int | None, elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor at an address of the current GPU."""
    found = torch.as_tensor(_Bytes(address or 0, elements * dtype.itemsize), device=torch.cuda.current_device())
    return found.view(dtype)
