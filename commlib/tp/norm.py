"""The norm before a block, fused with the sum over ranks and the residual before it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from commlib.collectives.all_reduce_rms_norm import normalised
from commlib.communicator import Communicator
from commlib.compile.epilogue import MAX_FIELDS, Epilogue, epilogue
from commlib.tp.layers import parameter
from commlib.tp.pipeline import Pipeline, Steps
from commlib.tp.shard import gather_rows, scatter_rows
from commlib.tp.weights import Source


class FusedResidualNorm(nn.Module):
    """RMSNorm of (the sum of all ranks' partial results + the residual): ends one block and begins the next.

    With `sequence_parallel`, the sum is scattered, each rank adds and normalises its rows, and the results are
    gathered; the residual then has only this rank's rows.
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
        if pipeline.engines:
            return (yield from self._steps_of_engines(pipeline, partial, residual))
        scattered = pipeline.scatter_rows(partial)
        yield
        rows: Tensor = scattered.result()
        gathered = pipeline.gather_rows(self._normalised(rows, residual), partial)
        yield
        gathered.wait()
        return rows

    def _steps_of_engines(self, pipeline: Pipeline, partial: Tensor, residual: Tensor | None) -> Steps[Tensor]:
        parts, brought = pipeline.bring_rows(partial)
        yield
        brought.wait()
        mine, of_norm = parts[self.comm.rank], {"eps": self.eps, "weight_bias": self.weight_bias}
        residual = add_and_normalise(pipeline.local, parts, residual, self.weight, out=mine, **of_norm)
        gathered = pipeline.gather_rows(mine, partial)
        yield
        gathered.wait()
        return residual

    def _normalised(self, rows: Tensor, residual: Tensor | None) -> Tensor:
        if residual is not None:
            rows += residual
        if self.weight_bias:  # added to the weight in float32, which torch's kernel does not
            return normalised(rows, self.weight, self.eps, self.weight_bias, None, False).to(rows.dtype)
        return F.rms_norm(rows, self.weight.shape, self.weight, self.eps)

    def load(self, source: Source, name: str) -> None:
        """Read the weight, the same on all ranks."""
        self.weight.copy_(source.read(f"{name}.weight", tuple(self.weight.shape)))


MAX_PARTS = MAX_FIELDS - 3  # of the fields, residual, weight and two outputs are no parts, and the first part is x


def add_and_normalise(
    local: Communicator,
    parts: Sequence[Tensor],
    residual: Tensor | None,
    weight: Tensor,
    *,
    out: Tensor,
    **numbers: Any,
) -> Tensor:
    """Write the norm of (the sum of rows from each rank + the residual) to `out`; return the new residual.

    That takes the residual's place. `local` has no other rank. Sums are rounded as all_reduce and an addition would;
    `out` may be one of the parts.
    """
    if len(parts) > MAX_PARTS:
        parts = [torch.stack(list(parts)).sum(0)]
    first, *others = parts
    fields: dict[str, Any] = {f"part{number}": part for number, part in enumerate(others, 1)}
    fields |= {"residual": residual, "weight": weight, "out": out, "residual_out": residual}
    summed: Tensor = _sum_and_norm(len(others))(local, first, **fields, **numbers)[1]
    return summed


@cache
def _sum_and_norm(others: int) -> Epilogue:
    parts = [f"part{number}" for number in range(1, others + 1)]

    def reference(x: Tensor, **fields: Any) -> tuple[Tensor, Tensor]:
        total = sum((fields[name].float() for name in parts), x.float()).to(x.dtype)
        h = total if fields["residual"] is None else total + fields["residual"]
        return normalised(h, fields["weight"], fields["eps"], fields["weight_bias"], None, False), h

    return epilogue(
        f"""
        const Row h = round(round({" + ".join(["x", *(f"load({name})" for name in parts)])}) + load(residual));
        store(residual_out, h);
        const float factor = 1.f / sqrtf(sum(h * h) / width + eps);
        store(out, h * (load(weight) + weight_bias) * factor);
        """,
        inputs={**dict.fromkeys(parts, "row"), "residual": "row", "weight": "columns"},
        outputs={"out": ("row", None), "residual_out": ("row", None)},
        numbers=("eps", "weight_bias"),
        reference=reference,
        name="sum_and_norm",
    )
