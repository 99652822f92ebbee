"""What other packages call when commlib is installed next to them; without COMMLIB_ENGINES nothing happens."""

from __future__ import annotations

from commlib import env


def vllm() -> None:
    """vllm.general_plugins: called in each process of vLLM."""
    if "vllm" in env.ENGINES.get():
        from commlib.engines.vllm import register

        register()


def sglang() -> None:
    """sglang.srt.plugins: called in each process of SGLang."""
    if "sglang" in env.ENGINES.get():
        from commlib.engines.sglang import register

        register()
