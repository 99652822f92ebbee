"""The backends: what a rank holds. `create` makes the one asked for."""

from __future__ import annotations

from commlib.backends.base import Backend, Options
from commlib.bootstrap.world import World, one_host
from commlib.errors import Unsupported

BACKENDS: tuple[str, ...] = ("shm", "torch")


def create(name: str, world: World, options: Options) -> Backend:
    """Make the backend on every rank of `world`; "auto" takes the best one that reaches all ranks."""
    from commlib.backends.shm import ShmBackend
    from commlib.backends.torch_dist import TorchBackend

    if name not in ("auto", *BACKENDS):
        raise ValueError(f"backend={name!r} is not known; use 'auto', {', '.join(map(repr, BACKENDS))}")
    together = one_host(world, options.timeout_s)
    if name == "auto":
        name = "shm" if together else "torch"
    if name == "shm" and not together:
        raise Unsupported("backend='shm' needs all ranks on one host, and they are on several; use backend='torch'")
    return ShmBackend(world, options) if name == "shm" else TorchBackend(world, options)
