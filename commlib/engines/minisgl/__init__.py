"""mini-sglang on commlib: `python -m commlib.engines.minisgl` and its own options start it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import commlib
from commlib import kernels

_TOKENS = (torch.int32, torch.int64)


def install() -> None:
    """Put our calls where mini-sglang looks for its own, in this process: communicator, kernels, prefix cache."""
    import minisgl.kernel

    for function in (init_pynccl, indexing, store_cache, fast_compare_key):
        setattr(minisgl.kernel, function.__name__, function)
    install_cache()


def install_cache() -> None:
    from minisgl.kvcache import SUPPORTED_CACHE_MANAGER

    from commlib.engines.minisgl.cache import PrefixCache

    if "commlib" not in SUPPORTED_CACHE_MANAGER.supported_names():
        SUPPORTED_CACHE_MANAGER.register("commlib")(PrefixCache)


def run_scheduler(args: Any, ack_queue: Any) -> None:
    """Run mini-sglang's scheduler of one rank in a process of its own."""
    install()
    from minisgl.server import launch

    launch._run_scheduler(args, ack_queue)


# --- what minisgl.kernel has, by the same names: the communicator, index, store, compare ------------------------------


class Communicator:
    def __init__(self, group: Any) -> None:
        self.comm = commlib.init(bootstrap=group)

    def all_reduce(self, input: Tensor, op: Any) -> None:
        self.comm.all_reduce(input, op)

    def all_gather(self, output: Tensor, input: Tensor) -> None:
        self.comm.all_gather_into_tensor(output, input)

    def get_buffer(self) -> int:
        """Raise: our kernels take tensors wherever they are, so there is no buffer to fill."""
        raise NotImplementedError("commlib has no buffer for all_reduce; pass any tensor")


def init_pynccl(*, tp_rank: int, tp_size: int, tp_cpu_group: Any, max_size_bytes: int = 0) -> Communicator:
    """Return the communicator of a CPU group; max_size_bytes is not needed, since any tensor is taken."""
    return Communicator(tp_cpu_group)


def indexing(
    weights: Tensor, indices: Tensor, *, output: Tensor | None = None, vocab_range: tuple[int, int] | None = None
) -> Tensor:
    return kernels.index(weights, indices, out=output, vocab_range=vocab_range)


def store_cache(k_cache: Tensor, v_cache: Tensor, indices: Tensor, k: Tensor, v: Tensor) -> None:
    tokens = k_cache.shape[0]
    kernels.store(k_cache.view(tokens, -1), v_cache.view(tokens, -1), indices, k, v, unique=True)


def fast_compare_key(x: Tensor, y: Tensor) -> int:
    if x.dtype != y.dtype or x.device.type != "cpu" or y.device.type != "cpu" or x.dtype not in _TOKENS:
        raise ValueError(f"x and y must be int32 or int64 tensors on the CPU, of one type, not {x.dtype} and {y.dtype}")
    return kernels.prefix_match(x, y)
