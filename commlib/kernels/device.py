"""The GPU kernels of this folder: how native code has them compiled, and all there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from commlib import extension, jit, native

_WIDTHS = (16, 8, 4, 2, 1)
_INDEX_SHAPES = ("8, 1", "32, 1", "128, 1", "128, 2")  # csrc/binding/index_launch.cc
_STORE_SHAPES = ("32, 1", "32, 2", "64, 2", "128, 2", "256, 2", "256, 1")  # csrc/binding/store_launch.cc
_NARROW_SHAPES = ("32, 2", "256, 2")  # of units below 16 bytes
_STORE_JOBS = ("DenseStoreJob", "StoreJob")
_FLOATS = {"float": 4, "commlib::half": 8, "commlib::bfloat16": 8}  # and how many are 16 bytes
_FLOATS8 = ("commlib::e4m3", "commlib::e5m2")


def connected(name: str) -> Callable[..., Any]:
    """Return a function of native code that has the compiler: each kernel is built when a call needs it."""
    native.set_builder(_build)
    return extension.direct(f"commlib.kernels.{name}")


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
        for move, shapes in _moves():
            for shape, compares in product(shapes, ("true", "false")):
                yield "store", f"store<{move}, {job}, {shape}, {compares}>"


def _moves() -> Iterator[tuple[str, tuple[str, ...]]]:
    widest, *others = _WIDTHS
    yield f"commlib::kernels::Copy<{widest}>", _STORE_SHAPES
    yield from ((f"commlib::kernels::Copy<{width}>", _NARROW_SHAPES) for width in others)
    for of, count in _FLOATS.items():
        for to in _FLOATS8:
            yield f"commlib::kernels::Quantise<{of}, {to}, {count}>", _STORE_SHAPES
            yield f"commlib::kernels::Quantise<{of}, {to}, 1>", _NARROW_SHAPES
