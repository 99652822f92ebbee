"""Which rows a call touches: sequential, random or Zipf, for each set of a rotation."""

from __future__ import annotations

import torch
from torch import Tensor

EXPONENT = 1.1  # of Zipf: the k-th most frequent row comes k^-1.1 as often as the first
SEED = 7


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
