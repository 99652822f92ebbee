"""Layers whose weights are divided over the ranks: by outputs (column), by inputs (row), or by ids of a vocabulary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from commlib import torch_backend
from commlib.communicator import Communicator, init
from commlib.core.work import Work
from commlib.counts import counted
from commlib.kernels import index
from commlib.torch_backend.group import CommlibGroup
from commlib.tp.pipeline import Pipeline
from commlib.tp.shard import Shard, gather_rows, scatter_rows, shard
from commlib.tp.weights import Source


def communicator(group: Any, device: torch.device | str = "cpu") -> Communicator:
    """Return a Communicator of a process group's ranks; every rank of the group must call this.

    Args:
        group: A Communicator, which is returned; a group of backend "commlib", which owns what is returned; or any
            other group (gloo, nccl), whose ranks get a new communicator: call once, and close it.
        device: Where the tensors of a group of backend "commlib" are.
    """
    if isinstance(group, Communicator):
        return group
    if isinstance(group, CommlibGroup):
        return torch_backend.communicator(group, torch.device(device).type)
    return init(bootstrap=group)


def parameter(comm: Communicator, *shape: int, dtype: torch.dtype) -> nn.Parameter:
    """Return weights that are not trained, to be loaded."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=comm.device), requires_grad=False)


def product(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """Write a linear layer's outputs of rows to `out`; both may be batches of rows that do not lie together."""
    batched = x.dim() > weight.dim()
    by = weight.t().expand(len(x), -1, -1) if batched else weight.t()
    if bias is None:
        return (torch.bmm if batched else torch.mm)(x, by, out=out)
    return (torch.baddbmm if batched else torch.addmm)(bias, x, by, out=out)


def rows_product(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """Do as product() for rows of any number of dimensions; return `out`, which must fit: torch would resize it."""
    outputs, inputs = weight.shape
    wanted = (*x.shape[:-1], outputs)
    if out.shape != wanted:
        raise ValueError(f"out has shape {tuple(out.shape)}, but must have {wanted}: a row of outputs for each of x")
    count = math.prod(wanted[:-1])
    product(x.reshape(count, inputs), weight, bias, out.view(count, outputs))
    return out


def chunks_of(comm: Communicator, pipeline: Pipeline | None, shape: Sequence[int]) -> list[slice]:
    """Return the chunks of each rank's rows of a tensor of all tokens; none: they are computed one after the other."""
    if pipeline is not None and pipeline.engines:
        raise ValueError("a Pipeline with engines=True is for models; give layers one with max_sms=")
    tokens, *batch, _ = shape
    if pipeline is None or tokens % comm.size:
        return []
    cuts = pipeline.cuts(tokens * math.prod(batch), comm.size)
    return cuts if len(cuts) > 1 else []


class ColumnParallelLinear(nn.Module):
    """A linear layer of which each rank computes a part of the outputs; forward() moves no data between ranks.

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
        self.comm = comm
        self.parts = list(out_features)
        self.in_features, self.lengths = in_features, [part.length for part in self.parts]
        self.weight = parameter(comm, sum(self.lengths), in_features, dtype=dtype)
        self.bias = parameter(comm, sum(self.lengths), dtype=dtype) if bias else None

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return this rank's outputs of all parts."""
        if out is None:
            return F.linear(x, self.weight, self.bias)
        return rows_product(x, self.weight, self.bias, out)

    def gathered(self, rows: Tensor, tokens: int, pipeline: Pipeline | None = None) -> Tensor:
        """Return this rank's outputs of all tokens, of which each rank passes its rows: sequence parallel.

        Args:
            rows: This rank's, as `scatter_rows` divides them.
            tokens: The rows of all ranks.
            pipeline: Says in how many chunks; where the ranks do not divide the tokens, it is one.
        """
        cuts = chunks_of(self.comm, pipeline, (tokens, *rows.shape[1:]))
        if pipeline is None or not cuts:
            return self.forward(gather_rows(self.comm, rows, rows.new_empty(tokens, *rows.shape[1:])))
        out = rows.new_empty(tokens, *rows.shape[1:-1], len(self.weight))
        local = rows.view(-1, self.in_features)
        of_ranks = out.view(self.comm.size, len(local), len(self.weight))
        wholes = [rows.new_empty(self.comm.size, *local[cut].shape) for cut in cuts]
        works = [pipeline.gather_rows(local[cut], whole.flatten(0, 1)) for cut, whole in zip(cuts, wholes, strict=True)]
        with pipeline.overlap():
            for cut, whole, work in zip(cuts, wholes, works, strict=True):
                work.wait()
                product(whole, self.weight, self.bias, of_ranks[:, cut])
        return out

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
            raise ValueError(
                f"names are {list(names)}, but this layer has {counted(len(self.parts), 'part')}; name each one"
            )
        return list(zip(names, self.parts, strict=True))


class RowParallelLinear(nn.Module):
    """A linear layer of which each rank has a part of the inputs; the ranks' results add up to the output.

    The bias is only in rank 0's partial result, so it is added once, whatever adds the results up.
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
        if out is None:
            out = x.new_empty(*x.shape[:-1], self.out_features)
        return rows_product(x, self.weight, self._bias_once, out)

    def scattered(self, x: Tensor, pipeline: Pipeline | None = None) -> Tensor:
        """Return those rows of the output that this rank keeps, as `scatter_rows` does: sequence parallel.

        Args:
            x: This rank's inputs of all tokens.
            pipeline: Says in how many chunks; where the ranks do not divide the tokens, it is one.
        """
        cuts = chunks_of(self.comm, pipeline, x.shape)
        if pipeline is None or not cuts:
            rows: Tensor = scatter_rows(self.comm, self.partial(x))
            return rows
        out = x.new_empty(len(x) // self.comm.size, *x.shape[1:-1], self.out_features)
        local = out.view(-1, self.out_features)
        of_ranks = x.reshape(self.comm.size, len(local), self.part.length)
        with pipeline.overlap():
            works = [self._scatter(pipeline, of_ranks[:, cut], local[cut]) for cut in cuts]
        for work in works:
            work.wait()
        return out

    @property
    def _bias_once(self) -> Tensor | None:
        return self.bias if self.comm.rank == 0 else None

    def _scatter(self, pipeline: Pipeline, x: Tensor, out: Tensor) -> Work:
        partial = product(x, self.weight, self._bias_once, x.new_empty(*x.shape[:-1], self.out_features))
        return pipeline.scatter_rows(partial.flatten(0, 1), out)

    def load(self, source: Source, name: str) -> None:
        """Read this rank's columns of the weight, and the bias."""
        self.weight.copy_(source.read(f"{name}.weight", (self.out_features, self.part.total), 1, self.part))
        if self.bias is not None:
            self.bias.copy_(source.read(f"{name}.bias", (self.out_features,)))


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
