"""The calls of torch.distributed through commlib's group next to NCCL's, or gloo's on the CPU; and a decode step.

    python benchmarks/torch_groups.py -o torch_groups.json

Each group has processes of its own, since DTensor takes two meshes of the same ranks for one; they take turns on the
same cores and GPUs: medians of blocks, on the slowest rank. First `dist.all_reduce`, then a decode step of a
tensor-parallel model that DTensor splits over the group: attention's and the MLP's products, an all-reduce behind each.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from written import command_line, head, write

from commlib.communicator import Communicator
from commlib.tools.testing import Ranks

SIZES = (8, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 24)
TURNS, BLOCK_S = 15, 20e-3
WIDE, LAYERS, BATCHES = 8192, 8, (1, 4, 16)
SMALL, FEW = 512, 2  # on the CPU
RUNS: dict[str, Callable[[], object]] = {}  # of this rank


class Layer(torch.nn.Module):
    """What is left of a decoder's layer when its cache is cut away: two pairs of products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = (torch.nn.Linear(width, width, bias=False) for _ in range(2))
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what both pairs make of x."""
        x = x + self.out(self.qkv(x))
        return x + self.down(torch.nn.functional.silu(self.up(x)))


def prepare(comm: Communicator, path: str, backend: str, gpu: bool) -> list[str]:
    """Make the group and what is timed; return its names."""
    if gpu:
        torch.cuda.set_device(comm.rank)
    dist.init_process_group(backend, store=dist.FileStore(path, comm.size), rank=comm.rank, world_size=comm.size)
    device, dtype, width = ("cuda", torch.bfloat16, WIDE) if gpu else ("cpu", torch.float32, SMALL)
    for num_bytes in SIZES:
        x = torch.zeros(num_bytes // 4, device=device)
        RUNS[f"all_reduce {num_bytes}"] = lambda x=x: dist.all_reduce(x)
        RUNS[f"all_reduce {num_bytes} async_op"] = lambda x=x: dist.all_reduce(x, async_op=True).wait()
    torch.manual_seed(0)
    with torch.device(device):
        model = torch.nn.Sequential(*(Layer(width) for _ in range(LAYERS if gpu else FEW))).to(dtype)
    mesh = dist.init_device_mesh(device, (comm.size,))
    split = {"qkv": ColwiseParallel(), "out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    for layer in model:
        parallelize_module(layer, mesh, split)
    for batch in BATCHES:
        step = _step(model, torch.randn(batch, width, device=device, dtype=dtype))
        RUNS[f"decode {batch} eager"] = step
        if gpu:
            RUNS[f"decode {batch} graph"] = _graph(step)
    return list(RUNS)


def _step(model: torch.nn.Module, x: torch.Tensor) -> Callable[[], object]:
    @torch.no_grad()
    def step() -> object:
        return model(x)

    return step


def _graph(step: Callable[[], object]) -> Callable[[], object]:
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def block_us(comm: Communicator, name: str, calls: int, gpu: bool) -> float:
    """Return the time of a call on the slowest rank."""
    run = RUNS[name]
    for _ in range(3):
        run()
    if gpu:
        torch.cuda.synchronize()
    comm.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    if gpu:
        torch.cuda.synchronize()
    return max(comm.all_gather_object((time.perf_counter() - start) / calls * 1e6))


def main() -> int:
    """Measure, print and write."""
    parser = command_line(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    rows = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        pools = {
            backend: stack.enter_context(Ranks(options.ranks, backend="shm", deadline_s=300.0))
            for backend in ("commlib", "nccl" if gpu else "gloo")
        }
        made = [ranks.run(prepare, f"{folder}/{backend}", backend, gpu)[0] for backend, ranks in pools.items()]
        for name in made[0]:
            first = next(iter(pools.values())).run(block_us, name, 10, gpu)[0]
            calls = max(3, int(BLOCK_S * 1e6 / first))
            blocks: dict[str, list[float]] = {backend: [] for backend in pools}
            for _ in range(TURNS):
                for backend, ranks in pools.items():
                    blocks[backend].append(ranks.run(block_us, name, calls, gpu)[0])
            row: dict[str, Any] = {f"{backend}_us": round(statistics.median(us), 2) for backend, us in blocks.items()}
            rows.append({"what": name, **row})
            print(f"{name:28}", *(f"{key} {us:10.2f}" for key, us in row.items()), flush=True)
    write(options.output, {**head("torch_groups", options.ranks, "nccl" if gpu else "shm"), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
