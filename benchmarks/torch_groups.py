"""The calls of torch.distributed through commlib's group beside NCCL's, or gloo's on the CPU; and a decode step.

    python benchmarks/torch_groups.py -o torch_groups.json

Both groups are in the same processes and take turns: medians of blocks, on the slowest rank. First `dist.all_reduce`,
then a decode step of a tensor-parallel model that DTensor splits over the group: attention's and the MLP's products, an
all-reduce behind each pair.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from written import command_line, head, write

from commlib.communicator import Communicator
from commlib.testing import Ranks

SIZES = (8, 1 << 10, 1 << 14, 1 << 18, 1 << 20)
TURNS, BLOCK_S = 15, 20e-3
WIDE, LAYERS, BATCHES = 8192, 8, (1, 4, 16)
SMALL, FEW = 512, 2  # on the CPU


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


def compare(comm: Communicator, path: str, gpu: bool) -> list[dict[str, Any]]:
    """Return a row for each call and each step, with both groups' times."""
    if gpu:
        torch.cuda.set_device(comm.rank)
    other = "nccl" if gpu else "gloo"
    dist.init_process_group(other, store=dist.FileStore(path, comm.size), rank=comm.rank, world_size=comm.size)
    groups = {"commlib": dist.new_group(backend="commlib"), other: dist.new_group(backend=other)}
    rows = [*_calls(comm, groups, gpu), *_steps(comm, groups, gpu)]
    dist.destroy_process_group()
    return rows


def _calls(comm: Communicator, groups: dict[str, Any], gpu: bool) -> list[dict[str, Any]]:
    rows = []
    for num_bytes in SIZES:
        x = torch.zeros(num_bytes // 4, device="cuda" if gpu else "cpu")
        for later in (False, True):
            runs = {name: _call(x, group, later) for name, group in groups.items()}
            rows.append({"what": "all_reduce, async_op" if later else "all_reduce", "bytes": num_bytes})
            rows[-1] |= _turns(comm, runs, gpu)
    return rows


def _call(x: torch.Tensor, group: Any, later: bool) -> Callable[[], object]:
    if later:
        return lambda: dist.all_reduce(x, group=group, async_op=True).wait()
    return lambda: dist.all_reduce(x, group=group)


def _steps(comm: Communicator, groups: dict[str, Any], gpu: bool) -> list[dict[str, Any]]:
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
    models, rows = {}, []
    for name, group in groups.items():
        torch.manual_seed(0)
        with torch.device(device):
            model = torch.nn.Sequential(*(Layer(WIDE if gpu else SMALL) for _ in range(LAYERS if gpu else FEW))).to(
                dtype
            )
        split = {"qkv": ColwiseParallel(), "out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        for layer in model:
            parallelize_module(layer, DeviceMesh.from_group(group, device), split)
        models[name] = model
    for batch in BATCHES:
        x = torch.randn(batch, WIDE if gpu else SMALL, device=device, dtype=dtype)
        steps = {name: _step(model, x) for name, model in models.items()}
        rows.append({"what": "decode step", "batch": batch, "mode": "eager"} | _turns(comm, steps, gpu))
        if gpu:
            graphs = {name: _graph(step) for name, step in steps.items()}
            rows.append({"what": "decode step", "batch": batch, "mode": "graph"} | _turns(comm, graphs, gpu))
    return rows


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


def _turns(comm: Communicator, runs: dict[str, Callable[[], object]], gpu: bool) -> dict[str, Any]:
    first = next(iter(runs.values()))
    calls = max(3, int(BLOCK_S / max(_block(comm, first, 10, gpu), 1e-7)))
    blocks: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(TURNS):
        for name, run in runs.items():
            blocks[name].append(_block(comm, run, calls, gpu) * 1e6)
    return {f"{name}_us": round(statistics.median(times), 2) for name, times in blocks.items()}


def _block(comm: Communicator, run: Callable[[], object], calls: int, gpu: bool) -> float:
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
    return max(comm.all_gather_object((time.perf_counter() - start) / calls))


def main() -> int:
    """Measure, print and write."""
    parser = command_line(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder, Ranks(options.ranks, backend="shm", deadline_s=500.0) as ranks:
        rows = ranks.run(compare, str(Path(folder) / "store"), gpu)[0]
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    write(options.output, {**head("torch_groups", options.ranks, "nccl" if gpu else "shm"), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
