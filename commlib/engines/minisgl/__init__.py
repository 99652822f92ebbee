"""mini-sglang on commlib: `python -m commlib.engines.minisgl` and its own options start it."""

from __future__ import annotations

from typing import Any


def install() -> None:
    """Put our calls where mini-sglang looks for its own, in this process: communicator, kernels, prefix cache."""
    import minisgl.kernel

    from commlib.engines.minisgl import kernel

    for name in kernel.__all__:
        setattr(minisgl.kernel, name, getattr(kernel, name))
    install_cache()


def install_cache() -> None:
    """Make `--cache-type commlib` known."""
    from minisgl.kvcache import SUPPORTED_CACHE_MANAGER

    from commlib.engines.minisgl.cache import PrefixCache

    if "commlib" not in SUPPORTED_CACHE_MANAGER.supported_names():
        SUPPORTED_CACHE_MANAGER.register("commlib")(PrefixCache)


def run_scheduler(args: Any, ack_queue: Any) -> None:
    """Run mini-sglang's scheduler of one rank in a process of its own."""
    install()
    from minisgl.server import launch

    launch._run_scheduler(args, ack_queue)
