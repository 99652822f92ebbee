"""store: K and V of new tokens into their slots, as they are or as fp8, beside torch and Triton."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from commlib.kernels.store import store
from commlib.tools.baselines.kernels import triton
from commlib.tools.baselines.kernels.case import FLOOR, OURS, Candidate, Case, Compiled, Inputs, copy
from commlib.tools.baselines.kernels.sets import rows_of, shared_rows
from commlib.tools.baselines.peer import in_turn
from commlib.tools.timing import Run, bits, poison

FP8 = "fp8"
E4M3_LIMIT = 448.0
K_SCALE, V_SCALE = 0.5, 0.25  # their reciprocals are exact: everyone rounds once


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
        """Whether the caches are of another type than K and V."""
        return bool(self.k_cache.dtype != self.k.dtype)

    def expected(self) -> Iterator[Tensor]:
        """Yield the whole caches: other slots must be as they were."""
        for cache, rows, scale in ((self.k_cache, self.k, K_SCALE), (self.v_cache, self.v, V_SCALE)):
            whole = poison(torch.empty_like(cache))
            bits(whole)[self.slots] = bits(quantised(rows, 1 / scale, cache.dtype) if self.quantises else rows)
            yield whole


def num_bytes(case: Case) -> int:
    """Count K and V read, and written as they are or as one byte an element; the slots are too few to count."""
    return 2 * case.n * case.dim * (case.dtype.itemsize + _kept_as(case).itemsize)


def inputs(case: Case, sets: int, device: torch.device) -> Sequence[Scatter]:
    """Return sets with one pair of caches, and slots, K and V of their own."""
    dtype = _kept_as(case)
    # A quarter for each cache: they are poisoned and compared as a whole.
    slots = shared_rows(4 * case.dim * dtype.itemsize, case.n, device)
    caches = [torch.zeros(slots, case.dim, dtype=dtype, device=device) for _ in "kv"]
    chosen = rows_of(case.pattern, sets, case.n, slots, device, unique=True)
    values = torch.randn(sets, 2, case.n, case.dim, dtype=case.dtype, device=device)
    return [Scatter(caches, chosen[at].clone(), values[at], num_bytes(case)) for at in range(sets)]


def candidates(case: Case, compiled: Compiled) -> list[Candidate]:
    """Return the store of each library; as fp8, what it takes of them to make one."""
    if case.variant == FP8:
        peers = [Candidate("torch fp8", lambda i: partial(_put_fp8, *_as_bytes(i))), compiled(_put_fp8, _as_bytes)]
    else:
        peers = [
            Candidate("torch index_copy_", _index_copy),
            Candidate("torch index_put_", lambda i: partial(_put, *_tensors(i))),
            compiled(_put, _tensors),
        ]
    floors = [copy(), Candidate("copy x 2", _two_copies, FLOOR)]
    ours = [Candidate("commlib", _ours, OURS), Candidate("commlib unique", partial(_ours, unique=True), OURS)]
    return [*ours, *floors, *peers, *triton.scatters(case)]


def quantised(rows: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    """Scale and clamp as torch must: its conversion alone makes NaN of what is too large."""
    return (rows.float() * factor).clamp_(-E4M3_LIMIT, E4M3_LIMIT).to(dtype)


def _kept_as(case: Case) -> torch.dtype:
    return torch.float8_e4m3fn if case.variant == FP8 else case.dtype


def _tensors(inputs: Scatter) -> tuple[Tensor, ...]:
    return inputs.k_cache, inputs.v_cache, inputs.slots, inputs.k, inputs.v


def _as_bytes(inputs: Scatter) -> tuple[Tensor, ...]:
    """Return the same with the caches as bytes: torch indexes no fp8 tensors on GPUs."""
    k_cache, v_cache, *others = _tensors(inputs)
    return k_cache.view(torch.uint8), v_cache.view(torch.uint8), *others


def _ours(inputs: Scatter, unique: bool = False) -> Run:
    scales = {"k_scale": K_SCALE, "v_scale": V_SCALE} if inputs.quantises else {}
    return partial(store, *_tensors(inputs), **scales, unique=unique)  # type: ignore[arg-type]


def _two_copies(inputs: Scatter) -> Run:
    halves = zip(inputs.target.tensor_split(2), inputs.source.tensor_split(2), strict=True)
    return in_turn(*(partial(target.copy_, source) for target, source in halves))


def _index_copy(inputs: Scatter) -> Run:
    k, v = inputs.k_cache.index_copy_, inputs.v_cache.index_copy_
    return in_turn(partial(k, 0, inputs.slots, inputs.k), partial(v, 0, inputs.slots, inputs.v))


def _put(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    k_cache.index_put_((slots,), k)
    v_cache.index_put_((slots,), v)


def _put_fp8(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    k_cache.index_put_((slots,), quantised(k, 1 / K_SCALE, torch.float8_e4m3fn).view(torch.uint8))
    v_cache.index_put_((slots,), quantised(v, 1 / V_SCALE, torch.float8_e4m3fn).view(torch.uint8))
