"""torch.compile(mode="reduce-overhead"): collectives in the CUDA graphs that Inductor captures by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from commlib.communicator import Communicator
from commlib.testing import Ranks

Tensors = tuple[torch.Tensor, ...]


def layer(comm: Communicator, x: torch.Tensor, weight: torch.Tensor) -> Tensors:
    """Compute before, between and after; in place and out of place."""
    partial = torch.relu(x * weight) + comm.rank
    comm.all_reduce(partial)
    largest = comm.all_reduce(partial * 2 + comm.rank, "max", out=torch.empty_like(partial))
    everyone = comm.all_gather_into_tensor(x.new_empty(comm.size * x.numel()), largest - 1)
    return partial + largest, everyone


def norms(comm: Communicator, x: torch.Tensor, weight: torch.Tensor) -> Tensors:
    """Normalise in place, out of place and quantised."""
    partial, residual = x * 2 + comm.rank, torch.ones_like(x)
    y, residual = comm.all_reduce_rms_norm(partial, residual, weight)
    small, h, scale = comm.all_reduce_rms_norm(y * 2, residual, weight, weight_bias=1.0, quant="fp8_token")
    return y + 1, small.float(), h, scale


def reduce_overhead(
    comm: Communicator, program: Callable[..., Tensors], shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[list[bool], int, int]:
    """Call it six times, of which two warm up and capture; return what agrees, graphs, and what was skipped."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    graph = torch.compile(program, fullgraph=True, mode="reduce-overhead")
    agree = []
    weight = torch.full(shape[-1:], 2.0, dtype=dtype, device=comm.device)
    with torch.no_grad():
        for step in range(6):
            x = (
                (torch.arange(shape[-1], device=comm.device) % 5 - 2 + step + comm.rank)
                .to(dtype)
                .repeat(*shape[:-1], 1)
            )
            torch.compiler.cudagraph_mark_step_begin()
            found = [value.clone() for value in graph(comm, x, weight)]
            agree += [torch.equal(a, b) for a, b in zip(found, program(comm, x, weight), strict=True)]
    torch.cuda.synchronize()
    comm.check()
    skipped, graphs = counters["inductor"]["cudagraph_skips"], counters["stats"]["unique_graphs"]
    torch._dynamo.reset()  # and with it CUDA graphs that hold calls of NCCL's
    return agree, graphs, skipped


CASES: tuple[Any, ...] = (
    (layer, (1, 64), torch.float32),
    (layer, (1, 70_001), torch.bfloat16),
    (norms, (3, 4096), torch.bfloat16),
)


@pytest.mark.parametrize(("program", "shape", "dtype"), CASES)
def test_reduce_overhead_captures_collectives(
    nccl_ranks: Ranks, program: Callable[..., Tensors], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    for agree, graphs, skipped in nccl_ranks.run(reduce_overhead, program, shape, dtype):
        assert all(agree)
        assert graphs == 1
        assert skipped == 0, "everything was captured"
