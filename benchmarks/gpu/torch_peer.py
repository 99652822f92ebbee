"""torch.distributed on NCCL, and torch's own all-reduces on symmetric memory."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from candidate import Candidate, Memory, Run
from case import DTYPE, Case

from commlib.communicator import Communicator
from commlib.errors import Unsupported

TIMEOUT = datetime.timedelta(seconds=120)


def start(comm: Communicator) -> None:
    """Make torch's default process group of the same ranks."""
    store, port = None, 0
    if comm.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        port = store.port
    port = comm.broadcast_object(port, 0)
    if store is None:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    gpu = comm.device.type == "cuda"
    options: dict[str, Any] = {"device_id": comm.device} if gpu else {}
    backend = "nccl" if gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=comm.rank, world_size=comm.size, timeout=TIMEOUT, **options)
    first = torch.ones(1, device=comm.device)
    dist.all_reduce(first)  # symmetric memory wants a collective before it
    if float(first) != comm.size:
        raise Unsupported("torch's first all_reduce gave a wrong sum")


def stop() -> None:
    """Leave the process group, once no graph holds a call any more."""
    if dist.is_initialized():
        dist.destroy_process_group()


def symmetric(comm: Communicator, elements: int) -> torch.Tensor:
    """Return a bf16 tensor in torch's symmetric memory; every rank calls it at the same place."""
    import torch.distributed._symmetric_memory as symm_mem

    if comm.device.type != "cuda":
        raise Unsupported("torch's symmetric memory is on GPUs")
    tensor = symm_mem.empty(elements, dtype=DTYPE, device=comm.device)
    symm_mem.rendezvous(tensor, dist.group.WORLD.group_name)  # type: ignore[union-attr]
    return tensor


def candidates(reason: str, plain: Memory, shared: Memory, case: Case) -> Iterator[Candidate]:
    """Yield torch's calls; `reason` says why there is no process group."""
    yield Candidate("torch_nccl", _distributed, plain, case.op == "all_reduce", reason=reason)
    if case.op == "all_reduce":
        yield Candidate("symm_one_shot", _one_shot, shared, in_place=False, reason=reason)
        yield Candidate("symm_two_shot", _two_shot, shared, in_place=True, reason=reason)


def _distributed(x: torch.Tensor, out: torch.Tensor, case: Case) -> Run:
    if case.op == "all_reduce":
        return partial(dist.all_reduce, x)
    if case.op == "all_gather":
        return partial(getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor, out, x)
    return partial(getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor, out, x)


def _one_shot(x: torch.Tensor, out: torch.Tensor, case: Case) -> Run:
    group = dist.group.WORLD.group_name  # type: ignore[union-attr]
    return partial(torch.ops.symm_mem.one_shot_all_reduce_out, x, "sum", group, out)


def _two_shot(x: torch.Tensor, out: torch.Tensor, case: Case) -> Run:
    group = dist.group.WORLD.group_name  # type: ignore[union-attr]
    return partial(torch.ops.symm_mem.two_shot_all_reduce_, x, "sum", group)
