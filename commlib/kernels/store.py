"""Rows of K and V into a paged cache; csrc/kernels/store/check.cc has the checks, cpu.cc the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from commlib.kernels import dispatch
from commlib.kernels.dispatch import PLAIN, PLAIN_OR_NONE, Scale, apart, compiling, grad_enabled
from commlib.native import library

# The order of the four dimensions of a cache in pages: the slots of a page before its heads, or behind them.
LAYOUTS = ("NHD", "HND")

_SCALES = PLAIN | {float, int}


def store(  # noqa: PLR0913
    k_cache: Tensor,
    v_cache: Tensor | None,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    k_scale: Scale = None,
    v_scale: Scale = None,
    skip: int | Sequence[int] = (),
    layout: str = "NHD",
    unique: bool = False,
) -> None:
    """Write row i of `k` and `v` into slot `slots[i]` of the caches; if `v_cache` is None, into one row of `k_cache`.

    If several rows have the same slot, the last one is stored; on a GPU, with many rows, it may be any one of them.
    Pass `unique=True` if no slot repeats: then the GPU need not check.
    """
    plain = (
        type(k_cache) in PLAIN
        and type(v_cache) in PLAIN_OR_NONE
        and type(slots) in PLAIN
        and type(k) in PLAIN
        and type(v) in PLAIN
        and (k_scale is None or type(k_scale) in _SCALES)
        and (v_scale is None or type(v_scale) in _SCALES)
    )
    if not plain:
        optional = {} if v_cache is None else {"v_cache": v_cache}
        dispatch.check_tensors("store", k_cache=k_cache, **optional, slots=slots, k=k, v=v)
        _check_scales(k_scale=k_scale, v_scale=v_scale)
    if grad_enabled() and (
        k.requires_grad or v.requires_grad or k_cache.requires_grad or (v_cache is not None and v_cache.requires_grad)
    ):
        dispatch.refuse_gradients("store", "k, v or a cache")
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}, but must be one of {', '.join(LAYOUTS)}")
    reserved = (skip,) if isinstance(skip, int) else skip
    if not plain or compiling():
        first = (k_cache, v_cache, slots, k, v, layout == "HND", unique)
        _store(*first, *apart(k_scale), *apart(v_scale), list(reserved))
        return
    try:  # here, not in a function that both ways call: a star and another function cost 200 ns
        library.store(k_cache, v_cache, slots, k, v, layout == "HND", unique, k_scale, v_scale, reserved)
    except ValueError:
        if not dispatch.on_meta(k_cache, v_cache, slots, k, v, k_scale, v_scale):
            raise


def _check_scales(**scales: object) -> None:
    for name, scale in scales.items():
        if scale is not None and not isinstance(scale, float | int | Tensor):
            raise TypeError(f"{name} of store is a {type(scale).__name__}, but must be a number or a torch tensor")


# For torch.compile and tensor subclasses.
@torch.library.custom_op(
    "commlib::store",
    mutates_args=("k_cache", "v_cache"),
    schema="(Tensor(a!) k_cache, Tensor(b!)? v_cache, Tensor slots, Tensor k, Tensor v, bool hnd, bool unique, "
    "Tensor? k_scale, float? k_number, Tensor? v_scale, float? v_number, SymInt[] skip) -> ()",
)
def _store(*arguments: Any) -> None:
    *first, k_scale, k_number, v_scale, v_number, skip = arguments
    native = [*first, k_number if k_scale is None else k_scale, v_number if v_scale is None else v_scale, skip]
    library.store(*native)
