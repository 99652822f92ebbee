"""The norm before a block, fused with the sum over ranks and the residual before it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from commlib.collectives.norms import normalised
from commlib.communicator import Communicator
from commlib.tp.linear import parameter
from commlib.tp.pipeline import Pipeline, Steps
from commlib.tp.sequence import gather_rows, scatter_rows
from commlib.tp.weights import Source


class FusedResidualNorm(nn.Module):
    """RMSNorm of (the sum of all ranks' partial results + the residual): ends one block and begins the next.

    With `sequence_parallel`, the sum is scattered, each rank adds and normalises its rows, and the results are
    gathered; the residual then has this rank's rows alone.
    """

    def __init__(
        self,
        comm: Communicator,
        width: int,
        eps: float = 1e-6,
        *,
        weight_bias: float = 0.0,
        sequence_parallel: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.comm, self.eps, self.weight_bias, self.sequence_parallel = comm, eps, weight_bias, sequence_parallel
        self.weight = parameter(comm, width, dtype=dtype)

    def forward(self, partial: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (normalised rows, the new residual); they replace `partial` and `residual`."""
        if self.sequence_parallel:
            rows = scatter_rows(self.comm, partial)
            return gather_rows(self.comm, self._normalised(rows, residual), partial), rows
        y, residual = self.comm.all_reduce_rms_norm(
            partial, residual, self.weight, self.eps, weight_bias=self.weight_bias
        )
        return y, residual

    def steps(self, pipeline: Pipeline, partial: Tensor, residual: Tensor | None) -> Steps[Tensor]:
        """Do as forward() with sequence_parallel, for one chunk of a pipeline; return the new residual."""
        scattered = pipeline.scatter_rows(partial)
        yield
        rows: Tensor = scattered.result()
        gathered = pipeline.gather_rows(self._normalised(rows, residual), partial)
        yield
        gathered.wait()
        return rows

    def _normalised(self, rows: Tensor, residual: Tensor | None) -> Tensor:
        """Add the residual to the rows, and return their norm."""
        if residual is not None:
            rows += residual
        if self.weight_bias:  # added to the weight in float32, which torch's kernel does not
            return normalised(rows, self.weight, self.eps, self.weight_bias, None, False).to(rows.dtype)
        return F.rms_norm(rows, self.weight.shape, self.weight, self.eps)

    def load(self, source: Source, name: str) -> None:
        """Read the weight, the same on all ranks."""
        self.weight.copy_(source.read(f"{name}.weight", tuple(self.weight.shape)))
