"""The backends: what a rank holds. `create` makes the one asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec

import torch

from commlib import env
from commlib.backends.base import Backend, Options
from commlib.backends.nccl import NcclBackend
from commlib.backends.shm import ShmBackend
from commlib.backends.torch_dist import TorchBackend
from commlib.bootstrap.world import World, hosts_text
from commlib.errors import Unsupported
from commlib.native import library

BACKENDS: dict[str, Callable[[World, Options], Backend]] = {
    "nccl": NcclBackend,
    "shm": ShmBackend,
    "torch": TorchBackend,
}


def create(name: str, world: World, options: Options) -> Backend:
    """Make the backend on every rank of `world`; "auto" takes the best one that reaches all ranks."""
    hosts = world.hosts()
    why = "asked for"
    if name == "auto" and len(hosts) > 1:
        name, why = "torch", f"{hosts_text(hosts)}: shared memory does not reach all ranks"
    elif name == "auto":
        name, why = _best(world, options)
    elif name != "torch" and len(hosts) > 1:
        raise Unsupported(
            f"backend={name!r} needs all ranks on one host, as one user in one PID namespace, but "
            f"{hosts_text(hosts)}; use backend='auto', which takes torch.distributed's engines there"
        )
    if world.rank == 0:
        logging.getLogger("commlib").info("backend %s: %s", name, why)
    return BACKENDS[name](world, options)


def _best(world: World, options: Options) -> tuple[str, str]:
    """On one host: GPUs where every rank has one of its own and nccl4py is there; else shared memory. And why."""
    if options.cpus:
        limit = library.max_shm_ranks()
        return ("shm" if world.size <= limit else "torch"), f"tensors on CPUs; shm serves up to {limit} ranks"
    one = torch.cuda.is_available() and torch.cuda.device_count() == 1  # as where a launcher shows each rank its own
    reason = lacks_gpu(0 if one else world.local_rank, f"rank {world.rank}")
    mine = [reason, f"GPU {env.foreign('CUDA_VISIBLE_DEVICES')}" if one else ""]
    rank_of_gpu: dict[str, int] = {}
    for rank, (lacks, only) in enumerate(world.exchange(mine, options.timeout_s)):
        if lacks:
            return "shm", lacks
        if only and rank_of_gpu.setdefault(only, rank) != rank:
            return "shm", f"ranks {rank_of_gpu[only]} and {rank} see one GPU between them"
    return "nccl", "every rank has a GPU of its own"


def here(ranks: int) -> str:
    """Name the backend that "auto" takes for so many ranks on this machine, without starting them."""
    return "shm" if any(lacks_gpu(rank, "") for rank in range(ranks)) else "nccl"


def lacks_gpu(local_rank: int, who: str) -> str:
    """Say what a rank of this machine lacks for the backend nccl, "" for nothing."""
    if not torch.cuda.is_available() or torch.cuda.device_count() <= local_rank:
        return f"{who} has no GPU of its own"
    return "" if find_spec("nccl") else f"{who} has no nccl4py (pip install nccl4py)"
