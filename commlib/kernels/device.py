"""The GPU kernels of this folder: how native code has them compiled, and all there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from commlib import jit, native

_WIDTHS = (16, 8, 4, 2, 1)
_INDEX_SHAPES = ("8, 1", "32, 1", "128, 1", "128, 2")  # csrc/binding/index_launch.cc
_STORE_SHAPES = ("256, 1", "32, 1", "32, 2", "32, 8")  # csrc/binding/store_launch.cc
_STORE_JOBS = ("DenseStoreJob", "StoreJob")
_FLOATS = {"float": 4, "commlib::half": 8, "commlib::bfloat16": 8}  # and how many are 16 bytes
_FLOATS8 = ("commlib::e4m3", "commlib::e5m2")


def connected(name: str) -> Callable[..., Any]:
    """Return a function of native code that has the compiler: each kernel is built when a call needs it."""
    native.kernel("set_builder")(_build)
    return native.keep_interpreter(native.kernel(name))


def _build(source: str, expression: str, arch: str) -> tuple[bytes, str]:
    kernel = jit.compile_kernel(source, expression, arch)
    return kernel.code, kernel.symbol


def kernels() -> list[tuple[str, str]]:
    """Return (source, expression) of every kernel that a call can need."""
    return [(f"kernels/{source}.cu", f"commlib::kernels::{name}") for source, name in _names()]


def _names() -> Iterator[tuple[str, str]]:
    yield from (("index", f"index<{shape}, {width}>") for shape in _INDEX_SHAPES for width in _WIDTHS)
    yield "index", "first_outside<256>"
    yield "metadata", "metadata<256>"
    for job in (f"commlib::kernels::{job}" for job in _STORE_JOBS):
        yield "store", f"claim<{job}>"
        for move, shape, compares in product(_moves(), _STORE_SHAPES, ("true", "false")):
            yield "store", f"store<{move}, {job}, {shape}, {compares}>"


def _moves() -> Iterator[str]:
    yield from (f"commlib::kernels::Copy<{width}>" for width in _WIDTHS)
    for of, count in _FLOATS.items():
        for to in _FLOATS8:
            yield f"commlib::kernels::Quantise<{of}, {to}, {count}>"
            yield f"commlib::kernels::Quantise<{of}, {to}, 1>"
