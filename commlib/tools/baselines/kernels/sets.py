"""Sets of inputs: so many that their turn comes when the cache has forgotten them, and the rows that each touches."""

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
EXPONENT = 1.1  # of Zipf: the k-th most frequent row comes k^-1.1 as often as the first
SEED = 7


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


def rows_of(pattern: str, sets: int, n: int, total: int, device: torch.device, unique: bool = False) -> Tensor:
    """Return int64 rows [sets, n] below `total`, n of which are no more; Zipf repeats rows unless they are `unique`.

    Sequential and random rows of a set are distinct, and so are those of neighbouring sets while there are rows left.
    """
    draw = torch.Generator(device).manual_seed(SEED)
    turn = torch.arange(sets * n, device=device).view(sets, n) % total
    if pattern == "sequential":
        return turn
    # So that frequent rows are no neighbours.
    shuffled = torch.randperm(total, generator=draw, device=device)
    if pattern == "random":
        return shuffled[turn]
    weights = torch.arange(1, total + 1, device=device, dtype=torch.float64) ** -EXPONENT
    if unique:
        return torch.stack([shuffled[_without_repetition(weights, n, draw)] for _ in range(sets)])
    reached = weights.cumsum(0)
    drawn = torch.rand(sets, n, generator=draw, device=device, dtype=torch.float64) * reached[-1]
    return shuffled[torch.searchsorted(reached, drawn).clamp_(max=total - 1)]


def _without_repetition(weights: Tensor, n: int, draw: torch.Generator) -> Tensor:
    # Who of exponential waits comes first is drawn by weight; the first n are drawn without repetition.
    waits = torch.empty_like(weights).exponential_(generator=draw) / weights
    return waits.topk(n, largest=False, sorted=False).indices
