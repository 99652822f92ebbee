"""What the kernels left out because its number names no place, counted for each kernel and device."""

from __future__ import annotations

from typing import cast

import torch

from commlib.errors import Unsupported
from commlib.native import library

_DLPACK_TYPES = {"cpu": 1, "cuda": 2}


def out_of_range_count(device: str | torch.device = "cpu", *, kernel: str = "index", reset: bool = True) -> int:
    """Return what calls of a kernel on this device left out since the last reset; on a GPU, after they have run."""
    where = torch.device(device)
    if where.type not in _DLPACK_TYPES or (where.type == "cuda" and not torch.cuda.is_available()):
        raise Unsupported(f"no kernel of commlib runs on {where} here, so nothing is counted there; pass 'cpu'")
    index = cast("int | None", where.index)  # torch's stubs know no "cuda" without a number
    if index is None:
        index = torch.cuda.current_device() if where.type == "cuda" else 0
    return library.out_of_range_count(kernel, _DLPACK_TYPES[where.type], index, reset)
