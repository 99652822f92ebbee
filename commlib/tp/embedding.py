"""An embedding whose vocabulary is divided over the ranks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from commlib.communicator import Communicator
from commlib.kernels import index
from commlib.tp.linear import parameter
from commlib.tp.shard import shard
from commlib.tp.weights import Source


class VocabParallelEmbedding(nn.Module):
    """A look-up of which each rank has the rows of a part of the ids; the ranks' rows add up to the result."""

    def __init__(self, comm: Communicator, vocab_size: int, width: int, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if vocab_size < comm.size:
            raise ValueError(f"vocab_size is {vocab_size}, but there are {comm.size} ranks, and each needs an id")
        self.comm, self.width = comm, width
        self.part = shard(vocab_size, comm.rank, comm.size)
        self.weight = parameter(comm, self.part.length, width, dtype=dtype)

    def forward(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows of all ids on every rank; an id outside the vocabulary gives zeros."""
        return self.comm.all_reduce(self.partial(ids, out))

    def partial(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return this rank's rows and zeros for the other ids, for FusedResidualNorm; `out` may be of comm.empty()."""
        return index(self.weight, ids, out=out, vocab_range=(self.part.start, self.part.length))

    def load(self, source: Source, name: str) -> None:
        """Read this rank's rows."""
        self.weight.copy_(source.read(f"{name}.weight", (self.part.total, self.width), 0, self.part))
