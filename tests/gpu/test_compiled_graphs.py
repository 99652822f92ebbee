"""torch.compile(mode="reduce-overhead"): collectives in the CUDA graphs that Inductor captures by itself."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import commlib
from commlib.communicator import Communicator
from commlib.compile import fuse as fusion
from commlib.tools.testing import Ranks
from commlib.torch_backend import communicator
from tests.epilogues import INT8, RMS_NORM, SCALED
from tests.fused import fused
from tests.gpu.on_ranks import on_every_rank
from tests.on_ranks import on_ranks
from tests.programs.launched import launched

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


def limited(comm: Communicator, x: torch.Tensor, weight: torch.Tensor) -> Tensors:
    """Make each call on another number of multiprocessors."""
    partial = torch.relu(x * weight) + comm.rank
    comm.all_reduce(partial, max_sms=4)
    everyone = comm.all_gather_into_tensor(x.new_empty(comm.size * x.numel()), partial - 1, max_sms=3)
    y, h = comm.all_reduce_rms_norm(partial * 2, None, weight, max_sms=2)
    narrow, scale = INT8(comm, y + 1, max_sms=1)
    return everyone, y, h, narrow.float(), scale


def epilogues(comm: Communicator, x: torch.Tensor, weight: torch.Tensor) -> Tensors:
    """Make rows of epilogues, one of which writes where it reads."""
    y, most = SCALED(comm, x * 2, residual=x, weight=weight, limit=x.new_full((), 3.0), eps=1e-6)
    q, scale = INT8(comm, y + comm.rank)
    h = torch.ones_like(x)
    z, h = RMS_NORM(comm, y * 2, residual=h, weight=weight, eps=1e-6, weight_bias=1.0, residual_out=h)
    return y, most, q.float() * scale, z, h


def model(reduce: Callable[[torch.Tensor], Any], rank: int, x: torch.Tensor, weight: torch.Tensor) -> Tensors:
    """Normalise as models do: as Hugging Face writes it, and as torch does."""
    first, residual = x * 2, x - rank  # the same on all ranks
    reduce(first)
    wide = (residual := residual + first).float()
    y = weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
    second = y * (rank + 1)
    reduce(second)
    h = residual + second
    return F.rms_norm(h, x.shape[-1:], weight, 1e-5), h


def by_communicator(comm: Communicator, x: torch.Tensor, weight: torch.Tensor) -> Tensors:
    return model(comm.all_reduce, comm.rank, x, weight)


def by_limited_calls(comm: Communicator, x: torch.Tensor, weight: torch.Tensor) -> Tensors:
    return model(lambda partial: comm.all_reduce(partial, max_sms=4), comm.rank, x, weight)


def by_group(comm: Communicator, x: torch.Tensor, weight: torch.Tensor) -> Tensors:
    return model(dist.all_reduce, comm.rank, x, weight)


def reduce_overhead(
    comm: Communicator, program: Callable[..., Tensors], shape: tuple[int, ...], dtype: torch.dtype, fuse: bool = False
) -> list[int]:
    """Call it six times, of which two warm up and capture, and compare; return how many calls were fused."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    backend: Any = commlib.inductor if fuse else "inductor"
    graph = torch.compile(program, fullgraph=True, backend=backend, mode="reduce-overhead")
    off = 8 * torch.finfo(dtype).eps if fuse else 0.0  # twice, the model rounds where the call does not
    counts = []
    weight, row = torch.full(shape[-1:], 2.0, dtype=dtype, device=comm.device), torch.arange(shape[-1]) % 5
    real = fusion.fuse
    with torch.no_grad(), mock.patch.object(fusion, "fuse", lambda given: counts.append(real(given))):
        for step in range(6):
            x = (row - 2 + step + comm.rank).to(comm.device, dtype).repeat(*shape[:-1], 1)
            torch.compiler.cudagraph_mark_step_begin()
            found = [value.clone() for value in graph(comm, x, weight)]
            expected = program(comm, x, weight)
            assert all(torch.allclose(a, b, rtol=off, atol=off) for a, b in zip(found, expected, strict=True)), step
    torch.cuda.synchronize()
    comm.check()
    assert counters["inductor"]["cudagraph_skips"] == 0, "everything was captured"
    assert counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()  # and with it CUDA graphs that hold calls of NCCL's
    return counts


CASES: tuple[Any, ...] = (
    (layer, (1, 64), torch.float32),
    (layer, (1, 70_001), torch.bfloat16),
    (norms, (3, 4096), torch.bfloat16),
    (limited, (3, 4096), torch.bfloat16),
    (epilogues, (3, 4096), torch.bfloat16),
)


@pytest.mark.parametrize(("program", "shape", "dtype"), CASES)
@on_every_rank
def test_reduce_overhead_captures_collectives(
    comm: Communicator, program: Callable[..., Tensors], shape: tuple[int, ...], dtype: torch.dtype
) -> list[int]:
    return reduce_overhead(comm, program, shape, dtype)


def in_group(device: torch.device) -> list[int]:
    with torch._inductor.config.patch(force_disable_caches=True):  # a graph from the disk has been fused before
        return reduce_overhead(communicator(None, "cuda"), by_group, (3, 4096), torch.bfloat16, fuse=True)


def test_reduce_overhead_captures_calls_that_the_pass_has_fused(nccl_ranks: Ranks) -> None:
    found = nccl_ranks.run(reduce_overhead, by_communicator, (3, 4096), torch.bfloat16, True)
    found += nccl_ranks.run(reduce_overhead, by_limited_calls, (3, 4096), torch.bfloat16, True)
    found += nccl_ranks.run(launched, in_group, "commlib")
    assert found == [[2]] * len(found)


@on_ranks(2, "nccl_ranks")
@torch.no_grad()
def test_torchs_own_norm_is_fused_where_nothing_takes_it_apart(comm: Communicator) -> None:
    x = (torch.arange(3 * 4096, device=comm.device) % 5 + comm.rank).float().view(3, 4096)
    args = comm, x, torch.linspace(0.5, 1.5, 4096, device=comm.device)
    values, count, *_ = fused(by_communicator, *args)
    assert count == 2
    torch.testing.assert_close(values, by_communicator(*args), rtol=1e-5, atol=1e-5)
