"""The backends: what a rank holds. `create` makes the one asked for."""

from __future__ import annotations

import logging
from importlib.util import find_spec

from commlib.backends.base import Backend, Options
from commlib.bootstrap.neighbours import one_host
from commlib.bootstrap.world import World
from commlib.errors import Unsupported

BACKENDS: tuple[str, ...] = ("nccl", "shm", "torch")


def create(name: str, world: World, options: Options) -> Backend:
    """Make the backend on every rank of `world`; "auto" takes the best one that reaches all ranks."""
    together = one_host(world, options.timeout_s)
    why = "asked for"
    if name == "auto":
        name, why = _best(world, together, options)
    if world.rank == 0:
        logging.getLogger("commlib").info("backend %s: %s", name, why)
    if name != "torch" and not together:
        raise Unsupported(f"backend={name!r} needs all ranks on one host, and they are on several; use backend='torch'")
    if name == "nccl":
        from commlib.backends.nccl import NcclBackend

        return NcclBackend(world, options)
    if name == "shm":
        from commlib.backends.shm import ShmBackend

        return ShmBackend(world, options)
    from commlib.backends.torch_dist import TorchBackend

    return TorchBackend(world, options)


def _best(world: World, together: bool, options: Options) -> tuple[str, str]:
    """GPUs where every rank has one of its own and nccl4py is there; else shared memory; else torch. And why."""
    if not together:
        return "torch", "the ranks are on several hosts, or not all of one user in one PID namespace"
    lacks = lacks_gpu(world.local_rank, f"rank {world.rank}")
    answers = [answer.decode() for answer in world.all_gather(lacks.encode(), options.timeout_s)]
    lacks = next(filter(None, answers), "")
    return ("shm", lacks) if lacks else ("nccl", "every rank has a GPU of its own")


def here(ranks: int) -> str:
    """Name the backend that "auto" takes for so many ranks on this machine, without starting them."""
    return "shm" if any(lacks_gpu(rank, "") for rank in range(ranks)) else "nccl"


def lacks_gpu(local_rank: int, who: str) -> str:
    """Say what a rank of this machine lacks for the backend nccl, "" for nothing."""
    import torch

    if not torch.cuda.is_available() or torch.cuda.device_count() <= local_rank:
        return f"{who} has no GPU of its own"
    return "" if find_spec("nccl") else f"{who} has no nccl4py (pip install nccl4py)"
