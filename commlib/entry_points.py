"""What other packages call when commlib is installed next to them; without COMMLIB_ENGINES nothing happens."""

import logging
from importlib import import_module

from commlib import env


def vllm() -> None:
    """vllm.general_plugins: called in each process of vLLM."""
    _register("vllm")


def sglang() -> None:
    """sglang.srt.plugins: called in each process of SGLang."""
    _register("sglang")


def _register(engine: str) -> None:
    """Register with an engine that COMMLIB_ENGINES names; an error must not end the server, so it is a warning."""
    try:
        if engine in env.ENGINES.get():
            import_module(f"commlib.engines.{engine}").register()
    except (ImportError, AttributeError, ValueError) as error:
        logging.getLogger("commlib").warning("%s stays on its own path: %s", engine, error)
