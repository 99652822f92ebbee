"""The backends: what a rank holds. `create` makes the one asked for."""

from __future__ import annotations

from importlib.util import find_spec

from commlib.backends.base import Backend, Options
from commlib.bootstrap.neighbours import one_host
from commlib.bootstrap.world import World
from commlib.errors import Unsupported

BACKENDS: tuple[str, ...] = ("nccl", "shm", "torch")


def create(name: str, world: World, options: Options) -> Backend:
    """Make the backend on every rank of `world`; "auto" takes the best one that reaches all ranks."""
    together = one_host(world, options.timeout_s)
    if name == "auto":
        name = _best(world, together, options)
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


def _best(world: World, together: bool, options: Options) -> str:
    """GPUs where every rank has one of its own and nccl4py is there; else shared memory; else torch."""
    if not together:
        return "torch"
    import torch

    usable = torch.cuda.is_available() and torch.cuda.device_count() > world.local_rank and find_spec("nccl")
    answers = world.all_gather(b"1" if usable else b"", options.timeout_s)
    return "nccl" if all(answers) else "shm"
