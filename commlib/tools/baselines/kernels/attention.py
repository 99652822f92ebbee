"""attention: decoding over a paged cache; the ceiling is a read of the bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from commlib.kernels.attention import FP8, decode_attention
from commlib.tools.baselines.kernels.case import FLOOR, OURS, SEED, Candidate, Case, Inputs, holding, type_name
from commlib.tools.timing import Run

FAR = 1e-2  # of the largest value; what is farther off is wrong
K_SCALE, V_SCALE = 0.5, 0.25
PAGE = 16

# (requests, tokens) that are measured, and with --sweep; the CPU has less.
SIZES = {"cuda": ((1, 4096), (64, 4096), (16, 16384)), "cpu": ((1, 512), (4, 512))}
_SMALL = ((1, 1024), (1, 8192), (1, 65536), (8, 8192), (16, 16384), (32, 8192), (64, 1024), (64, 4096))
SWEEPS = {
    "cuda": (*_SMALL, (128, 4096), (256, 1024), (256, 4096)),
    "cpu": ((1, 128), (1, 2048), (4, 512), (16, 512)),
}
DEFAULT = {"cuda": (64, 4096), "cpu": (4, 512)}  # where only one of both is named
HEADS = {"cuda": (64, 8), "cpu": (8, 1)}  # of queries, of K and V
WORKSPACE_BYTES = 128 << 20  # that FlashInfer asks for


@dataclass(frozen=True)
class Attention(Case):
    """n requests of `length` tokens, and heads of `dim` features; the variant is decode, or decode fp8."""

    kernel = "attention"
    length: int = 4096
    heads: int = 64
    kv_heads: int = 8
    page_size: int = PAGE

    def __str__(self) -> str:
        return f"attention {self.variant}, {self.n} x {self.length}, {self.heads}/{self.kv_heads} heads of {self.dim}"

    @property
    def cache_dtype(self) -> torch.dtype:
        return FP8 if self.variant.endswith("fp8") else self.dtype

    @property
    def cache(self) -> str:
        return type_name(self.cache_dtype)

    @property
    def num_bytes(self) -> int:
        """K and V once, queries, and results."""
        cache = 2 * self.n * self.length * self.kv_heads * self.dim * self.cache_dtype.itemsize
        return cache + 2 * self.n * self.heads * self.dim * self.dtype.itemsize

    def inputs(self, sets: int, device: torch.device) -> Sequence[Decoding]:
        draw = torch.Generator(device).manual_seed(SEED)
        return [Decoding(self, device, draw) for _ in range(sets)]

    def candidates(self) -> list[Candidate]:
        read = Candidate.triton("read, Triton", lambda code, inputs: code.reading(inputs), FLOOR)
        ours = Candidate("commlib", Decoding.ours, OURS)
        return [ours, Candidate("read", Decoding.read, FLOOR), read, *_decoding(self)]


class Decoding(Inputs):
    """A query for each request, tables of random pages, and a cache that has just these."""

    k_scale, v_scale = K_SCALE, V_SCALE

    def __init__(self, case: Attention, device: torch.device, draw: torch.Generator) -> None:
        self.case = case
        count = -(-case.length // case.page_size)  # pages of a request
        shape = (2, case.n * count, case.page_size, case.kv_heads, case.dim)
        self.kv = torch.empty(shape, dtype=case.cache_dtype, device=device)
        for cache in self.kv:
            cache.copy_(torch.randn(shape[1:], dtype=case.dtype, device=device, generator=draw))
        self.k_cache, self.v_cache = self.kv
        self.tables = torch.randperm(shape[1], generator=draw, device=device).int().view(case.n, count)
        self.lengths = torch.full((case.n,), case.length, dtype=torch.int32, device=device)
        self.q = torch.randn(case.n, case.heads, case.dim, dtype=case.dtype, device=device, generator=draw)
        self.out = torch.empty_like(self.q)
        self.outputs = [self.out]
        self.source = self.kv.view(-1)[: 2 * case.n * case.length * case.kv_heads * case.dim].view(torch.uint8)
        self.target = self.out

    def check(self, returned: Any) -> tuple[int, float | None]:
        """Count the elements that are too far off, as NaN is; return the largest distance over the largest value."""
        result = returned if isinstance(returned, Tensor) else self.out
        distance = (result.float() - self.truth).abs() / self.truth.abs().max()
        largest = float(distance.max())
        return int((~(distance <= FAR)).count_nonzero()), math.inf if math.isnan(largest) else largest

    @property
    def scales(self) -> dict[str, float]:
        return {"k_scale": K_SCALE, "v_scale": V_SCALE} if self.case.cache_dtype == FP8 else {}

    @cached_property
    def dense(self) -> tuple[Tensor, Tensor]:
        """Return K and V of each request side by side, [requests, heads, tokens, dim]; of equal lengths."""
        length, pages = self.case.length, self.tables.long()
        k, v = (cache[pages].flatten(1, 2)[:, :length].transpose(1, 2).contiguous() for cache in self.kv)
        return k, v

    @property
    def grouped(self) -> Tensor:
        """Return the queries of each KV head as rows, [requests, KV heads, rows, dim]: nobody has K and V repeated."""
        rows: Tensor = self.q.unflatten(1, (self.case.kv_heads, -1))
        return rows

    @cached_property
    def truth(self) -> Tensor:
        """Compute one request after the other."""
        case, out = self.case, torch.empty(self.q.shape, device=self.q.device)
        factors = (K_SCALE, V_SCALE) if self.scales else (1, 1)
        for at in range(case.n):
            pages = self.tables[at].long()
            k, v = (
                cache[pages].flatten(0, 1)[: case.length].float().mul_(factor)
                for cache, factor in zip(self.kv, factors, strict=True)
            )
            q = self.q[at].float().unflatten(0, (case.kv_heads, -1))
            scores = q @ k.permute(1, 2, 0) * case.dim**-0.5
            out[at] = (scores.softmax(-1) @ v.transpose(0, 1)).flatten(0, 1)
        return out

    def ours(self) -> Run:
        tensors = (self.q, self.k_cache, self.v_cache, self.tables, self.lengths)
        options: dict[str, Any] = {"out": self.out, **self.scales}
        return partial(decode_attention, *tensors, **options)

    def read(self) -> Run:
        return partial(torch.sum, self.source[: len(self.source) // 4 * 4].view(torch.float32))


# --- other libraries: torch, flash-attn, FlashInfer


def _decoding(case: Attention) -> list[Candidate]:
    """Return who reads the pages, and who reads a dense copy that is made before."""
    flashinfer = Candidate.package("FlashInfer", "flashinfer", _flashinfer_decode)
    if case.cache_dtype == FP8:
        dense = ("gather, torch", "torch dense", "flash-attn")
        return [*(Candidate.missing(label, "reads no 8-bit cache") for label in dense), flashinfer]
    return [
        Candidate.allocating("gather, torch", _gathered, lambda i: (i.grouped, i.tables.long(), i.kv, i.case.length)),
        Candidate.allocating("torch dense", _rows, lambda i: (i.grouped, *i.dense)),
        Candidate.package("flash-attn", "flash_attn", _flash_attn_decode),
        flashinfer,
    ]


def _rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v).flatten(1, 2)


def _gathered(q: Tensor, pages: Tensor, kv: Tensor, length: int) -> Tensor:
    """Gather the pages and attend: what a program without a kernel for pages does."""
    k, v = (cache[pages].flatten(1, 2)[:, :length].transpose(1, 2) for cache in kv)
    return _rows(q, k, v)


def _flash_attn_decode(library: Any, inputs: Decoding) -> Run:
    k, v = (x.transpose(1, 2).contiguous() for x in inputs.dense)
    call = partial(library.flash_attn_with_kvcache, inputs.q[:, None], k, v, cache_seqlens=inputs.lengths, causal=True)
    return holding(inputs, lambda: call()[:, 0])


def _flashinfer_decode(library: Any, inputs: Decoding) -> Run:
    """Plan once, outside of what is timed; run over the same pages as ours."""
    case, size = inputs.case, inputs.case.page_size
    count = inputs.tables.shape[1]
    starts = torch.arange(0, case.n * count + 1, count, dtype=torch.int32, device=inputs.q.device)
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=inputs.q.device)
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    shape = (case.heads, case.kv_heads, case.dim, size)
    types = {"q_data_type": case.dtype, "kv_data_type": case.cache_dtype}
    wrapper.plan(starts, inputs.tables.view(-1), (inputs.lengths - 1) % size + 1, *shape, **types)
    return partial(wrapper.run, inputs.q, (inputs.k_cache, inputs.v_cache), out=inputs.out, **inputs.scales)
