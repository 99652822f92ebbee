"""store: K and V of new tokens into their slots, as they are or as fp8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from commlib.kernels.store import store
from commlib.tools.baselines.kernels.case import OURS, Candidate, Case, Inputs, rows_of, shared_rows
from commlib.tools.baselines.peer import in_turn
from commlib.tools.timing import Run, bits, poison

FP8 = "fp8"
E4M3_LIMIT = 448.0
TRITON_BLOCK = 8192  # elements of a program, at most
K_SCALE, V_SCALE = 0.5, 0.25  # their reciprocals are exact: everyone rounds once


class Store(Case):
    """K and V of n tokens."""

    kernel = "store"

    @property
    def stored_as(self) -> torch.dtype:
        return torch.float8_e4m3fn if self.variant == FP8 else self.dtype

    @property
    def num_bytes(self) -> int:
        """K and V read, and written as they are or as one byte an element; the slots are too few to count."""
        return 2 * self.n * self.dim * (self.dtype.itemsize + self.stored_as.itemsize)

    def inputs(self, sets: int, device: torch.device) -> Sequence[Scatter]:
        # A quarter for each cache: they are poisoned and compared as a whole.
        slots = shared_rows(4 * self.dim * self.stored_as.itemsize, self.n, device)
        caches = [torch.zeros(slots, self.dim, dtype=self.stored_as, device=device) for _ in "kv"]
        chosen = rows_of(self.pattern, sets, self.n, slots, device)
        values = torch.randn(sets, 2, self.n, self.dim, dtype=self.dtype, device=device)
        return [Scatter(caches, chosen[at].clone(), values[at], self.num_bytes) for at in range(sets)]

    def candidates(self) -> list[Candidate]:
        block = min(1 << max(self.dim - 1, 0).bit_length(), TRITON_BLOCK)  # Triton wants a power of two
        return [
            Candidate("commlib", Scatter.ours, OURS),
            Candidate("commlib unique", partial(Scatter.ours, unique=True), OURS),
            Candidate.copy(),
            *(_fp8_by_torch() if self.variant else _by_torch()),
            Candidate.triton("triton", lambda code, inputs: code.scattering(inputs, block)),
        ]


class Scatter(Inputs):
    """K and V of tokens, their slots, and the caches, which all sets share."""

    k_scale, v_scale, limit = K_SCALE, V_SCALE, E4M3_LIMIT

    def __init__(self, caches: Sequence[Tensor], slots: Tensor, kv: Tensor, num_bytes: int) -> None:
        self.outputs, self.slots = caches, slots
        self.k_cache, self.v_cache = caches
        self.k, self.v = kv
        self.source = kv.view(-1)[: num_bytes // 2 // kv.itemsize]
        self.target = torch.empty_like(self.source)

    @property
    def quantises(self) -> bool:
        return bool(self.k_cache.dtype != self.k.dtype)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.k_cache, self.v_cache, self.slots, self.k, self.v

    def expected(self) -> Iterator[Tensor]:
        """Yield the whole caches: other slots must be as they were."""
        for cache, rows, scale in ((self.k_cache, self.k, K_SCALE), (self.v_cache, self.v, V_SCALE)):
            whole = poison(torch.empty_like(cache))
            bits(whole)[self.slots] = bits(quantised(rows, 1 / scale) if self.quantises else rows)
            yield whole

    def ours(self, unique: bool = False) -> Run:
        scales: dict[str, Any] = {"k_scale": K_SCALE, "v_scale": V_SCALE} if self.quantises else {}
        return partial(store, *self.tensors, **scales, unique=unique)


def quantised(rows: Tensor, factor: float) -> Tensor:
    """Scale and clamp as torch must: its conversion makes NaN of what is too large."""
    return (rows.float() * factor).clamp_(-E4M3_LIMIT, E4M3_LIMIT).to(torch.float8_e4m3fn)


def _by_torch() -> list[Candidate]:
    return [
        Candidate("torch index_copy_", _index_copy),
        Candidate("torch index_put_", lambda i: partial(_put, *i.tensors)),
        Candidate.compiled(_put, lambda i: i.tensors),
    ]


def _fp8_by_torch() -> list[Candidate]:
    return [Candidate("torch fp8", lambda i: partial(_put_fp8, *_as_bytes(i))), Candidate.compiled(_put_fp8, _as_bytes)]


def _as_bytes(inputs: Scatter) -> tuple[Tensor, ...]:
    """Return what a store takes with the caches as bytes: torch indexes no fp8 tensors on GPUs."""
    k_cache, v_cache, *others = inputs.tensors
    return k_cache.view(torch.uint8), v_cache.view(torch.uint8), *others


def _index_copy(inputs: Scatter) -> Run:
    k, v = inputs.k_cache.index_copy_, inputs.v_cache.index_copy_
    return in_turn(partial(k, 0, inputs.slots, inputs.k), partial(v, 0, inputs.slots, inputs.v))


def _put(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    k_cache.index_put_((slots,), k)
    v_cache.index_put_((slots,), v)


def _put_fp8(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    k_cache.index_put_((slots,), quantised(k, 1 / K_SCALE).view(torch.uint8))
    v_cache.index_put_((slots,), quantised(v, 1 / V_SCALE).view(torch.uint8))
