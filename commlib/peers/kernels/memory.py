"""How much memory a case may take: sets enough that their turn comes when the cache has forgotten them."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

MOST_SETS = 240  # and as many calls in a graph
LEAST_SETS = 3
L2_BYTES = 60 << 20  # where the driver does not say
CPU_COLD_BYTES = 64 << 20
SHARE = 0.3  # of the memory that is free, for all sets together
# Of a table or a cache, which all sets share.
GPU_SHARED_BYTES, CPU_SHARED_BYTES = 1 << 30, 32 << 20


def cold_bytes(device: torch.device) -> int:
    """Return how many bytes push all before them out of the cache: twice what it holds."""
    if device.type != "cuda":
        return CPU_COLD_BYTES
    return 2 * int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or L2_BYTES)


def sets_for(num_bytes: int, device: torch.device, hot: bool) -> int:
    """Return how many sets rotate: one hot set, or as many as are cold, and as memory and graphs allow."""
    if hot:
        return 1
    wanted = -(-cold_bytes(device) // max(num_bytes, 1))
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2 << 30
    room = int(SHARE * free) // max(num_bytes, 1)
    return max(1, min(max(wanted, LEAST_SETS), MOST_SETS, room))


def shared_rows(row_bytes: int, n: int, device: torch.device) -> int:
    """Return how many rows a table or cache has: far more than a call touches, where that is not too much."""
    room = GPU_SHARED_BYTES if device.type == "cuda" else CPU_SHARED_BYTES
    return max(n, room // max(row_bytes, 1))


@lru_cache(maxsize=1)
def table(rows: int, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a table of random values; the next case often wants the same."""
    return torch.rand(rows, dim, dtype=dtype, device=device)
