"""The sum of sparse tensors: what every rank has is gathered, and added in rank order."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from commlib.core.dispatch import Make


def sum_sparse(make: Make, x: Tensor, size: int) -> None:
    """Replace a sparse COO tensor by the sum of all ranks'."""
    own = x.detach().coalesce()
    indices, values = own.indices().t().contiguous(), own.values().contiguous()
    counts = indices.new_empty(size)
    make("all_gather", counts, indices.new_tensor([indices.shape[0]]))
    rows = counts.tolist()
    total = torch.sparse_coo_tensor(_gathered(make, indices, rows).t(), _gathered(make, values, rows), x.shape)
    with torch.no_grad():
        x.copy_(total.coalesce())


def _gathered(make: Make, mine: Tensor, rows: list[int]) -> Tensor:
    """Return all ranks' rows, which differ in number."""
    out = mine.new_empty(sum(rows), *mine.shape[1:])
    width = math.prod(mine.shape[1:])
    make("all_gatherv", out.view(-1), mine.view(-1), [count * width for count in rows])
    return out
