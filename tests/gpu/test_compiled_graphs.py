"""torch.compile(mode="reduce-overhead"): collectives in the CUDA graphs that Inductor captures by itself."""

from __future__ import annotations

import torch

from commlib.communicator import Communicator
from commlib.testing import Ranks

COUNTS = (64, 70_001)


def layer(comm: Communicator, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute before, between and after; in place and out of place."""
    partial = torch.relu(x * weight) + comm.rank
    comm.all_reduce(partial)
    largest = comm.all_reduce(partial * 2 + comm.rank, "max", out=torch.empty_like(partial))
    everyone = comm.all_gather_into_tensor(x.new_empty(comm.size * len(x)), largest - 1)
    return partial + largest, everyone


def reduce_overhead(comm: Communicator, count: int, dtype: torch.dtype) -> tuple[list[bool], int, int]:
    """Call it six times, of which two warm up and capture; return what agrees, graphs, and what was skipped."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    graph = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    agree = []
    weight = torch.full((count,), 2.0, dtype=dtype, device=comm.device)
    with torch.no_grad():
        for step in range(6):
            x = (torch.arange(count, device=comm.device) % 5 - 2 + step + comm.rank).to(dtype)
            torch.compiler.cudagraph_mark_step_begin()
            found = [value.clone() for value in graph(comm, x, weight)]
            agree += [torch.equal(a, b) for a, b in zip(found, layer(comm, x, weight), strict=True)]
    torch.cuda.synchronize()
    comm.check()
    skipped, graphs = counters["inductor"]["cudagraph_skips"], counters["stats"]["unique_graphs"]
    torch._dynamo.reset()  # and with it CUDA graphs that hold calls of NCCL's
    return agree, graphs, skipped


def test_reduce_overhead_captures_collectives(nccl_ranks: Ranks) -> None:
    for count, dtype in zip(COUNTS, (torch.float32, torch.bfloat16), strict=True):
        for agree, graphs, skipped in nccl_ranks.run(reduce_overhead, count, dtype):
            assert all(agree)
            assert graphs == 1
            assert skipped == 0, "everything was captured"
