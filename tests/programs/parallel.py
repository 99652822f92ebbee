"""Programs of plain torch: each runs in the process group that its launcher made, and returns what it computed."""

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, SEQUENCE, WORDS = 32, 4, 16, 64


class Convolutions(nn.Module):
    """Convolutions with batch norms, whose running averages are buffers that DDP broadcasts."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.head = nn.Linear(8, 10)
        self.unused = None if again else nn.Linear(8, 10)
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for _ in range(1 + self.again):  # the second time its gradients are ready once more: for static graphs only
            x = x + checkpoint(self.block, x, use_reentrant=False)
        return self.head(x.mean(dim=(2, 3)))


DDP_OPTIONS: tuple[dict[str, bool], ...] = (
    {"find_unused_parameters": True},
    {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    {"static_graph": True},
)


@torch.backends.cudnn.flags(enabled=True, deterministic=True)
def ddp(device: torch.device, options: dict[str, bool]) -> Any:
    """Train with DistributedDataParallel in many small buckets, and gradients of two batches for each step."""
    model = Convolutions(again="static_graph" in options).to(device)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1e-3, **options)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses, generator = [], torch.Generator().manual_seed(dist.get_rank())
    for step in range(6):
        x = torch.randn(4, 3, 8, 8, generator=generator).to(device)
        # With a static graph every pass of the first steps is observed, and so must communicate.
        more = step % 2 == 0 and "static_graph" not in options
        with wrapped.no_sync() if more else nullcontext():
            loss = F.cross_entropy(wrapped(x), torch.arange(4, device=device))
            loss.backward()
        losses.append(loss.item())
        if not more:
            optimizer.step()
            optimizer.zero_grad()
    return losses, [value.cpu() for value in model.state_dict().values()]


def outlives(device: torch.device) -> None:
    """Destroy the group while a model in DDP still has it, as scripts do whose model is a variable of the module."""
    model = DistributedDataParallel(Convolutions(again=True).to(device), static_graph=True)
    model(torch.randn(4, 3, 8, 8, device=device)).sum().backward()
    dist.destroy_process_group()


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = (heads(part(y)) for part in (self.q, self.k, self.v))
        with sdpa_kernel(SDPBackend.MATH):  # on GPUs the others may add in another order each time
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.o(y.flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(2, (-1, WIDTH // HEADS)).transpose(1, 2)


class Transformer(nn.Module):
    """Two blocks over an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(device: torch.device, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, WORDS, (2, SEQUENCE), generator=torch.Generator().manual_seed(seed)).to(device)


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def sharded(device: torch.device, **options: Any) -> Transformer:
    model = Transformer().to(device)
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def fsdp(device: torch.device, dtype: torch.dtype | None = None) -> list[float]:
    """Train 20 steps with FSDP2 and return the losses."""
    model = sharded(device, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for step in range(20):
        tokens = batch(device, dist.get_rank() + 4 * (step % 3))
        loss = loss_of(model(tokens).float(), tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def tensor_parallel(device: torch.device, data_ranks: int = 1) -> Any:
    """Run blocks in tensor and sequence parallel, on several data ranks also with FSDP2; beside one rank's results."""
    mesh = init_device_mesh(
        device.type, (data_ranks, dist.get_world_size() // data_ranks), mesh_dim_names=("data", "tensor")
    )
    whole, model = Transformer().to(device), Transformer().to(device)
    model.load_state_dict(whole.state_dict())
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], PLAN_OF_BLOCK)
    parallelize_module(model, mesh["tensor"], PLAN)
    if data_ranks > 1:
        fully_shard(model, mesh=mesh["data"])
    found = []
    for net, seeds in ((model, [mesh["data"].get_local_rank()]), (whole, range(data_ranks))):
        losses = [loss_of(net(tokens), tokens) for tokens in (batch(device, seed) for seed in seeds)]
        (sum(losses) / len(losses)).backward()
        found.append([*(p.grad for p in net.parameters()), net(batch(device))])
    ours, expected = ([full(x).detach().cpu() for x in part] for part in found)
    return ours, expected


PLAN_OF_BLOCK = {
    "norm1": SequenceParallel(),
    "norm2": SequenceParallel(),
    **{name: ColwiseParallel(input_layouts=Shard(1), use_local_output=True) for name in ("q", "k", "v", "up")},
    "o": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
}
PLAN = {
    "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False),
    "norm": SequenceParallel(),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


def full(x: Any) -> torch.Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def pipeline(device: torch.device) -> Any:
    """Train one step in two stages and four micro-batches; return losses and gradients, beside one rank's."""
    rank, whole = dist.get_rank(), nn.Sequential(Block(), Block()).to(device)
    x, target = (torch.randn(8, SEQUENCE, WIDTH, device=device) for _ in range(2))
    stage = PipelineStage(whole[rank], rank, 2, device)
    schedule = Schedule1F1B(stage, 4, loss_fn=F.mse_loss)
    losses: list[torch.Tensor] = []
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=target, losses=losses)
    ours = [p.grad.clone().cpu() for p in whole[rank].parameters()]
    whole.zero_grad()
    parts = [F.mse_loss(whole(a), b) for a, b in zip(x.chunk(4), target.chunk(4), strict=True)]
    (sum(parts) / 4).backward()
    expected = [p.grad.cpu() for p in whole[rank].parameters()]
    if rank == 1:
        ours, expected = ours + [x.detach().cpu() for x in losses], expected + [x.detach().cpu() for x in parts]
    return ours, expected


def save(device: torch.device, folder: str) -> float:
    """Train one step with FSDP2 and save model and optimizer in a thread, which has a group of its own."""
    model, optimizer = trained(device)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    saving = dcp.async_save(state, checkpoint_id=folder, process_group=dist.new_group())
    here = loss_of(model(batch(device)), batch(device)).item()  # while the thread's calls are under way
    saving.result()
    dcp.save(state, checkpoint_id=f"{folder}/again")
    return here


def load(device: torch.device, folder: str) -> list[float]:
    """Load what other ranks saved, however many they were, into an untrained model."""
    found = []
    for path in (folder, f"{folder}/again"):
        torch.manual_seed(1)
        model, optimizer = trained(device, seed=1)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        dcp.load(state, checkpoint_id=path)
        model.load_state_dict(state["model"])
        found.append(loss_of(model(batch(device)), batch(device)).item())
    return found


def trained(device: torch.device, seed: int = 0) -> Any:
    model = sharded(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    loss_of(model(batch(device, seed)), batch(device, seed)).backward()
    optimizer.step()
    return model, optimizer
