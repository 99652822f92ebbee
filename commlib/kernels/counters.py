"""What the kernels left out because its number names no place, counted for each kernel and device."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch

from commlib import extension
from commlib.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

_DLPACK_TYPES = {"cpu": 1, "cuda": 2}


def out_of_range_count(device: str | torch.device = "cpu", *, kernel: str = "index", reset: bool = True) -> int:
    """Return what calls of a kernel on this device left out since the last reset; on a GPU, after they have run."""
    where = torch.device(device)
    if where.type not in _DLPACK_TYPES or (where.type == "cuda" and not torch.cuda.is_available()):
        raise Unsupported(f"no kernel of commlib runs on {where} here, so nothing is counted there; pass 'cpu'")
    index = cast("int | None", where.index)  # torch's stubs know no "cuda" without a number
    if index is None:
        index = torch.cuda.current_device() if where.type == "cuda" else 0
    return int(_counter()(kernel, _DLPACK_TYPES[where.type], index, reset))


@cache
def _counter() -> Callable[..., Any]:
    return extension.direct("commlib.kernels.out_of_range_count")
