"""store: K and V of new tokens into their slots, as they are or as fp8, beside torch and Triton."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from commlib.kernels.store import store
from commlib.peers.kernels import triton
from commlib.peers.kernels.case import (
    FLOOR,
    OURS,
    POISON,
    Candidate,
    Case,
    Compiled,
    Inputs,
    Kernel,
    bits,
    copy,
    differing,
)
from commlib.peers.kernels.memory import shared_rows
from commlib.peers.kernels.patterns import rows_of
from commlib.timing import Run

FP8 = "fp8"
E4M3_LIMIT = 448.0
K_SCALE, V_SCALE = 0.5, 0.25  # their reciprocals are exact: everyone rounds once


class Scatter(Inputs):
    """K and V of tokens, their slots, and the caches, which all sets share."""

    k_scale, v_scale, limit = K_SCALE, V_SCALE, E4M3_LIMIT

    def __init__(self, caches: tuple[Tensor, Tensor], slots: Tensor, kv: Tensor, num_bytes: int) -> None:
        (self.k_cache, self.v_cache), self.slots = caches, slots
        self.k, self.v = kv[0], kv[1]
        half = num_bytes // 2 // kv.itemsize
        self.source = kv.view(-1)[:half]
        self.target = torch.empty_like(self.source)

    @property
    def quantises(self) -> bool:
        """Whether the caches are of another type than K and V."""
        return self.k_cache.dtype != self.k.dtype

    def poison(self) -> None:
        """Fill the caches."""
        bits(self.k_cache).fill_(POISON)
        bits(self.v_cache).fill_(POISON)

    def wrong(self, returned: Any) -> int:
        """Compare the whole caches: other slots must be as they were."""
        return self._differing(self.k_cache, self.k, K_SCALE) + self._differing(self.v_cache, self.v, V_SCALE)

    def _differing(self, cache: Tensor, rows: Tensor, scale: float) -> int:
        expected = torch.empty_like(cache)
        bits(expected).fill_(POISON)
        if self.quantises:
            rows = quantised(rows, 1 / scale, cache.dtype)
        bits(expected)[self.slots] = bits(rows)
        return differing(cache, expected)


class Store(Kernel):
    """Rows of `dim` elements, K's and V's; n tokens."""

    name = "store"
    dims, rows = (128, 1024), (1, 64, 512, 4096, 32768)
    sweep_dims, sweep_rows = (128, 256, 512, 1024), (1, 16, 64, 256, 512, 1024, 4096, 16384, 32768)
    dtypes = (torch.bfloat16, torch.float16, torch.float32)

    def num_bytes(self, case: Case) -> int:
        """Count K and V read, and written as they are or as one byte an element; the slots are too few to count."""
        return 2 * case.n * case.dim * (case.dtype.itemsize + _kept_as(case).itemsize)

    def inputs(self, case: Case, sets: int, device: torch.device) -> Sequence[Scatter]:
        """Return sets with one pair of caches, and slots, K and V of their own."""
        dtype = _kept_as(case)
        # A quarter for each cache: they are poisoned and compared as a whole.
        slots = shared_rows(4 * case.dim * dtype.itemsize, case.n, device)
        caches = tuple(torch.zeros(slots, case.dim, dtype=dtype, device=device) for _ in "kv")
        chosen = rows_of(case.pattern, sets, case.n, slots, device, unique=True)
        values = torch.randn(sets, 2, case.n, case.dim, dtype=case.dtype, device=device)
        num_bytes = self.num_bytes(case)
        return [Scatter((caches[0], caches[1]), chosen[at].clone(), values[at], num_bytes) for at in range(sets)]

    def candidates(self, case: Case, compiled: Compiled) -> list[Candidate]:
        """Return the store of each library; as fp8, what it takes of them to make one."""
        if case.variant == FP8:
            peers = [Candidate("torch fp8", _torch_fp8), compiled(_assign_fp8, _fp8_arguments)]
        else:
            peers = [
                Candidate("torch index_copy_", _index_copy),
                Candidate("torch index_put_", _index_put),
                compiled(_assign, lambda i: (i.k_cache, i.v_cache, i.slots, i.k, i.v)),
            ]
        floors = [copy(), Candidate("copy x 2", _two_copies, FLOOR)]
        ours = [Candidate("commlib", _ours, OURS), Candidate("commlib unique", partial(_ours, unique=True), OURS)]
        return [*ours, *floors, *peers, *triton.scatters(case)]


def quantised(rows: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    """Scale and clamp as torch must: its conversion alone makes NaN of what is too large."""
    return (rows.float() * factor).clamp_(-E4M3_LIMIT, E4M3_LIMIT).to(dtype)


def _kept_as(case: Case) -> torch.dtype:
    return torch.float8_e4m3fn if case.variant == FP8 else case.dtype


def _ours(inputs: Scatter, unique: bool = False) -> Run:
    tensors = (inputs.k_cache, inputs.v_cache, inputs.slots, inputs.k, inputs.v)
    if inputs.quantises:
        return partial(store, *tensors, k_scale=K_SCALE, v_scale=V_SCALE, unique=unique)
    return partial(store, *tensors, unique=unique)


def _two_copies(inputs: Scatter) -> Run:
    halves = zip(inputs.target.tensor_split(2), inputs.source.tensor_split(2), strict=True)
    return _both(*(partial(target.copy_, source) for target, source in halves))


def _index_copy(inputs: Scatter) -> Run:
    k, v = inputs.k_cache.index_copy_, inputs.v_cache.index_copy_
    return _both(partial(k, 0, inputs.slots, inputs.k), partial(v, 0, inputs.slots, inputs.v))


def _index_put(inputs: Scatter) -> Run:
    k, v = inputs.k_cache.index_put_, inputs.v_cache.index_put_
    return _both(partial(k, (inputs.slots,), inputs.k), partial(v, (inputs.slots,), inputs.v))


def _both(k: Callable[[], object], v: Callable[[], object]) -> Run:
    def run() -> None:
        k()
        v()

    return run


def _torch_fp8(inputs: Scatter) -> Run:
    # As bytes: torch indexes no fp8 tensors on GPUs.
    k_cache, v_cache = inputs.k_cache.view(torch.uint8), inputs.v_cache.view(torch.uint8)
    k, v, slots, dtype = inputs.k, inputs.v, (inputs.slots,), inputs.k_cache.dtype

    def run() -> None:
        k_cache.index_put_(slots, quantised(k, 1 / K_SCALE, dtype).view(torch.uint8))
        v_cache.index_put_(slots, quantised(v, 1 / V_SCALE, dtype).view(torch.uint8))

    return run


def _assign(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    k_cache[slots] = k
    v_cache[slots] = v


def _assign_fp8(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    k_cache[slots] = quantised(k, 1 / K_SCALE, torch.float8_e4m3fn).view(torch.uint8)
    v_cache[slots] = quantised(v, 1 / V_SCALE, torch.float8_e4m3fn).view(torch.uint8)


def _fp8_arguments(inputs: Scatter) -> tuple[Any, ...]:
    return inputs.k_cache.view(torch.uint8), inputs.v_cache.view(torch.uint8), inputs.slots, inputs.k, inputs.v


KERNEL = Store()
