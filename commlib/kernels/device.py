"""The GPU kernels of csrc/kernels: how native code has them compiled, and all there are."""

from __future__ import annotations

from commlib import jit
from commlib.native import library


def _build(source: str, expression: str, arch: str) -> tuple[bytes, str]:
    kernel = jit.compile_kernel(source, expression, arch)
    return kernel.code, kernel.symbol


def kernels() -> list[tuple[str, str]]:
    """Return (source, expression) of every kernel that a call can need; each is built when a call needs it."""
    return list(library.device_kernels())


library.set_builder(_build)
