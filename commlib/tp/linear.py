"""Linear layers whose weights are divided over the ranks: by outputs (column) or by inputs (row)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from commlib.communicator import Communicator
from commlib.tp.shard import Shard, shard
from commlib.tp.weights import Source


def parameter(comm: Communicator, *shape: int, dtype: torch.dtype) -> nn.Parameter:
    """Return weights that are not trained, to be loaded."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=comm.device), requires_grad=False)


class ColumnParallelLinear(nn.Module):
    """A linear layer of which each rank computes a part of the outputs; it moves no data between ranks.

    A merged layer has several parts, e.g. the Q, K and V of this rank: one product, whose columns `split` takes apart.
    """

    def __init__(
        self,
        comm: Communicator,
        in_features: int,
        out_features: int | Sequence[Shard],
        *,
        bias: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if isinstance(out_features, int):
            out_features = [shard(out_features, comm.rank, comm.size)]
        self.parts = list(out_features)
        self.in_features, self.lengths = in_features, [part.length for part in self.parts]
        self.weight = parameter(comm, sum(self.lengths), in_features, dtype=dtype)
        self.bias = parameter(comm, sum(self.lengths), dtype=dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's outputs of all parts."""
        return F.linear(x, self.weight, self.bias)

    def split(self, y: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of what forward() returned, as views."""
        return torch.split(y, self.lengths, -1)

    def load(self, source: Source, *names: str) -> None:
        """Read this rank's rows of each part's weight and bias, e.g. "…q_proj", "…k_proj", "…v_proj"."""
        rows = [source.read(f"{name}.weight", (p.total, self.in_features), 0, p) for name, p in self._named(names)]
        self.weight.copy_(torch.cat(rows))
        if self.bias is not None:
            ends = [source.read(f"{name}.bias", (p.total,), 0, p) for name, p in self._named(names)]
            self.bias.copy_(torch.cat(ends))

    def _named(self, names: Sequence[str]) -> list[tuple[str, Shard]]:
        if len(names) != len(self.parts):
            raise ValueError(f"names are {list(names)}, but this layer has {len(self.parts)} parts; name each one")
        return list(zip(names, self.parts, strict=True))


class RowParallelLinear(nn.Module):
    """A linear layer of which each rank has a part of the inputs; the ranks' results add up to the output.

    The bias is in rank 0's partial result alone, so it is added once, whatever adds the results up.
    """

    def __init__(
        self,
        comm: Communicator,
        in_features: int | Shard,
        out_features: int,
        *,
        bias: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.comm, self.out_features = comm, out_features
        self.part = shard(in_features, comm.rank, comm.size) if isinstance(in_features, int) else in_features
        self.weight = parameter(comm, out_features, self.part.length, dtype=dtype)
        self.bias = parameter(comm, out_features, dtype=dtype) if bias else None

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the output on every rank."""
        return self.comm.all_reduce(self.partial(x, out))

    def partial(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return what this rank adds to the output, for FusedResidualNorm; `out` may be of comm.empty()."""
        rows = x.reshape(-1, self.part.length)
        if out is None:
            out = x.new_empty(*x.shape[:-1], self.out_features)
        flat = out.view(-1, self.out_features)
        if self.bias is not None and self.comm.rank == 0:
            torch.addmm(self.bias, rows, self.weight.t(), out=flat)
        else:
            torch.mm(rows, self.weight.t(), out=flat)
        return out

    def load(self, source: Source, name: str) -> None:
        """Read this rank's columns of the weight, and the bias."""
        self.weight.copy_(source.read(f"{name}.weight", (self.out_features, self.part.total), 1, self.part))
        if self.bias is not None:
            self.bias.copy_(source.read(f"{name}.bias", (self.out_features,)))
