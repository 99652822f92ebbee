"""Time training steps with commlib and with gloo, or on GPUs NCCL, in turns in one run: DDP and FSDP2.

    python benchmarks/training.py -o training.json         # two ranks; on GPUs, where there are two

The third in turn is torch's "fake" backend, which does not communicate: what a step takes longer with gloo is
communication. With either backend a model trains from the same weights, and must come to the same loss.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # its import makes "fake" known
from written import command_line, head, write

from commlib.communicator import Communicator
from commlib.tools.testing import Ranks

TURNS, BLOCK_S = 15, 0.3
Step = Callable[[], torch.Tensor]


class Residual(nn.Module):
    """Two convolutions next to a short cut."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        stride = 1 + (width > given)
        first, second = nn.Conv2d(given, width, 3, stride, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.body = nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), second, nn.BatchNorm2d(width))
        self.short = nn.Conv2d(given, width, 1, stride) if width > given else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of both ways."""
        return F.relu(self.body(x) + self.short(x))


def ddp(group: Any, device: torch.device, batch: int, width: int) -> Step:
    """Return a step of a ResNet of eight blocks on images of 32 × 32."""
    widths = [width, width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
    blocks = [Residual(*pair) for pair in pairwise(widths)]
    net = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = _replicated(net.append(nn.Linear(widths[-1], 10)).to(device), group)
    x, target = torch.randn(batch, 3, 32, 32, device=device), torch.arange(batch, device=device) % 10
    return _step(model, lambda: F.cross_entropy(model(x), target))


def fsdp(group: Any, device: torch.device, batch: int, width: int) -> Step:
    """Return a step of a transformer of four layers on sequences of 64, each layer sharded."""
    layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True) for _ in range(4)]
    model = _sharded(nn.Sequential(*layers).to(device), group)
    x = torch.randn(batch, 64, width, device=device)
    return _step(model, lambda: F.mse_loss(model(x), x))


class Llama(nn.Module):
    """A layer of Llama 7B, without positions: attention of heads of 128, and a gated MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = width * 43 // 16
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add attention and the MLP."""
        q, k, v = (part.unflatten(-1, (-1, 128)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def _llama(device: torch.device, tokens: int, width: int) -> tuple[nn.Sequential, torch.Tensor]:
    with device:
        layers = nn.Sequential(*(Llama(width) for _ in range(6))).bfloat16()
        return layers, torch.randn(1, tokens, width, dtype=torch.bfloat16)


def ddp_llama(group: Any, device: torch.device, tokens: int, width: int) -> Step:
    """Return a step of six layers of a Llama, which every rank has whole."""
    layers, x = _llama(device, tokens, width)
    model = _replicated(layers, group)
    return _step(model, lambda: _apart(model(x), x))


def fsdp_llama(group: Any, device: torch.device, tokens: int, width: int) -> Step:
    """Return a step of six layers of a Llama, each layer sharded."""
    layers, x = _llama(device, tokens, width)
    model = _sharded(layers, group)
    return _step(model, lambda: _apart(model(x), x))


def _apart(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a loss whose gradients are not lost where they are added to bfloat16."""
    return (y - x).float().square().sum(-1).mean()


def _replicated(model: nn.Module, group: Any) -> nn.Module:
    replicated = DistributedDataParallel(model, process_group=group)
    if dist.get_backend(group) == "fake":
        replicated.register_comm_hook(None, noop_hook)  # DDP takes no results from that backend
    return replicated


def _sharded(layers: nn.Sequential, group: Any) -> nn.Sequential:
    mesh = DeviceMesh.from_group(group, next(layers.parameters()).device.type)
    for part in (*layers, layers):
        fully_shard(part, mesh=mesh)
    return layers


def _step(model: nn.Module, loss_of: Step) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step() -> torch.Tensor:
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


MODELS = {"ddp": ddp, "fsdp": fsdp, "ddp_llama": ddp_llama, "fsdp_llama": fsdp_llama}
SHAPES = {
    "cpu": [("ddp", 1, 32), ("ddp", 4, 32), ("ddp", 1, 64), *(("fsdp", batch, 256) for batch in (1, 4, 16))],
    "cuda": [*((f"{kind}_llama", 2048, 4096) for kind in ("fsdp", "ddp")), ("ddp", 64, 64), ("fsdp", 16, 2048)],
}


def turns(comm: Communicator, folder: str, names: list[str]) -> list[dict[str, Any]]:
    """Time every shape on this rank, the backends in turns."""
    dist.init_process_group(names[1], init_method=f"file://{folder}/store", rank=comm.rank, world_size=comm.size)
    groups = {name: dist.new_group(backend=name) for name in names}
    rows = []
    for model, batch, width in SHAPES[comm.device.type]:
        steps = {}
        for name, group in groups.items():
            torch.manual_seed(0)
            steps[name] = MODELS[model](group, comm.device, batch, width)
        calls, losses, times = 3, {}, {name: [] for name in names}
        for turn in range(-1, TURNS):  # the first is the warm-up, and says how many steps make a block
            torch.use_deterministic_algorithms(turn < 0, warn_only=True)  # for the losses, which are compared
            for name, step in steps.items():
                seconds, loss = _block(comm, step, calls)
                losses |= {name: loss} if turn < 0 else {}
                times[name] += [seconds] if turn >= 0 else []
            calls = max(3, int(BLOCK_S / seconds)) if turn < 0 else calls
            calls = comm.broadcast_object(calls, 0)
        ours, theirs, alone = (statistics.median(times[name]) for name in names)
        row = {"model": model, "batch": batch, "width": width, "theirs": names[1], "ours_ms": ours * 1e3}
        row |= {"theirs_ms": theirs * 1e3, "alone_ms": alone * 1e3, "communication": 1 - alone / theirs}
        row |= {"ratio": theirs / ours, "loss_apart": abs(losses[names[0]] / losses[names[1]] - 1)}
        rows.append(row)
    dist.destroy_process_group()
    return rows


def _block(comm: Communicator, step: Step, calls: int) -> tuple[float, float]:
    """Return the slowest rank's seconds of a step, and the last loss."""
    comm.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        loss = step()
    last = loss.item()  # waits for a GPU
    return max(comm.all_gather_object((time.perf_counter() - start) / calls)), last


def main() -> int:
    """Measure, print the ratios and write them."""
    parser = command_line(__doc__)
    options = parser.parse_args()
    gpu = torch.cuda.device_count() >= 2
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic then
    own, theirs = ("nccl", "nccl") if gpu else ("shm", "gloo")
    settings = {"backend": own, "timeout_s": 60.0, "max_bytes": 1 << 20}
    with Ranks(2, deadline_s=900.0, **settings) as ranks, tempfile.TemporaryDirectory() as folder:
        rows = ranks.run(turns, folder, ["commlib", theirs, "fake"])[0]
    for row in rows:
        print(
            " ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{value}" for name, value in row.items())
        )
    write(options.output, {**head("training", 2, own), "rows": rows})
    return int(not all(row["loss_apart"] <= 1e-3 for row in rows))  # exactly 0 on CPUs; cuDNN's order changes


if __name__ == "__main__":
    sys.exit(main())
