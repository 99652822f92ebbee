"""torch as a baseline: its operations, the same compiled, and each backend of its attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from commlib.tools.baselines.kernels.case import (
    Arguments,
    Baseline,
    Candidate,
    allocating,
    missing,
)
from commlib.tools.baselines.kernels.metadata import TOPK
from commlib.tools.baselines.kernels.store import K_SCALE, V_SCALE, quantised
from commlib.tools.baselines.peer import in_turn

if TYPE_CHECKING:
    from commlib.tools.baselines.kernels.attention import Attention, Prefilling
    from commlib.tools.baselines.kernels.index import Index
    from commlib.tools.baselines.kernels.metadata import Lengths, Metadata
    from commlib.tools.baselines.kernels.radix import Radix
    from commlib.tools.baselines.kernels.store import Scatter, Store
    from commlib.tools.timing import Run

COMPILED, FLEX = "torch.compile", "FlexAttention"
STATIC_S = 150.0  # of compiling, in all; a shape takes 1 to 5 s, and later ones are compiled for any shape
FLEX_S = 45.0  # of compiling in a run; shapes that come later are left out
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
ON_CPU = ("flash", "math")


class Torch(Baseline):
    """torch; `off` says why it does not compile."""

    name = "torch"

    def __init__(self, off: str = "") -> None:
        self.off = off
        self.spent_s = 0.0
        self.shapes = 0
        self.dynamic = False

    def compiled(self, function: Callable[..., object], arguments: Arguments, label: str = COMPILED) -> Candidate:
        """Return the candidate that calls the compiled function; it compiles when it is called first."""
        if self.off:
            return missing(label, self.off)
        if not self.dynamic:
            torch._dynamo.reset()  # a function is compiled for eight shapes, and then, silently, no more
        compiled = torch.compile(function, dynamic=self.dynamic, fullgraph=True)
        return Candidate(label, lambda inputs: partial(compiled, *arguments(inputs)), took=self._took)

    def _took(self, seconds: float) -> None:
        self.spent_s += seconds
        self.shapes += 1
        self.dynamic = self.spent_s > STATIC_S

    def notes(self) -> list[str]:
        if not self.shapes:
            return []
        also = f"; for any shape after {STATIC_S:.0f} s" if self.dynamic else ""
        return [f"{COMPILED}: {self.shapes} shapes compiled in {self.spent_s:.1f} s{also}"]

    def index(self, case: Index) -> list[Candidate]:
        if case.variant:
            masked = allocating("torch masked", _masked, lambda i: (i.weights, i.ids, i.start, i.length))
            return [masked, self.compiled(_masked_out, lambda i: (i.out, i.weights, i.ids, i.start, i.length))]
        return [
            Candidate("torch index_select", lambda i: partial(torch.index_select, i.weights, 0, i.ids, out=i.out)),
            allocating("torch embedding", F.embedding, lambda i: (i.ids, i.weights)),
            self.compiled(_take, lambda i: (i.out, i.weights, i.ids)),
        ]

    def store(self, case: Store) -> list[Candidate]:
        if case.variant:
            fp8 = Candidate("torch fp8", lambda i: partial(_put_fp8, *_as_bytes(i)))
            return [fp8, self.compiled(_put_fp8, _as_bytes)]
        return [
            Candidate("torch index_copy_", _index_copy),
            Candidate("torch index_put_", lambda i: partial(_put, *i.tensors)),
            self.compiled(_put, lambda i: i.tensors),
        ]

    def metadata(self, case: Metadata) -> list[Candidate]:
        """Return operations none of which waits for the device."""

        def lengths(inputs: Lengths) -> tuple[Tensor, Tensor, int]:
            return inputs.extend_lens, inputs.seq_lens, inputs.tokens

        return [allocating("torch", _vectorised, lengths), self.compiled(_vectorised, lengths)]

    def radix(self, case: Radix) -> list[Candidate]:
        compares = Candidate("torch", lambda i: lambda: int((i.ids != i.other).nonzero()[0]))
        return [compares] if case.variant == "prefix_match" else []

    def decode(self, case: Attention) -> list[Candidate]:
        """Return decoding over gathered pages, and over a dense copy that is made before."""
        gather = "gather, torch"
        if case.not_dense:
            return [missing(label, case.not_dense) for label in [gather, *(f"torch {name}" for name in BACKENDS), FLEX]]
        return [
            allocating(gather, _gathered, lambda i: (i.grouped, i.tables.long(), i.kv, i.case.length)),
            *_backends(lambda i: (i.grouped, *i.dense), _rows),
            self._flex(_flex_rows, lambda i: (i.grouped, *i.dense)),
        ]

    def prefill(self, case: Attention) -> list[Candidate]:
        """Return who attends to whole prompts."""
        return [
            allocating("torch", causal, lambda i: (i.q, i.k, i.v)),
            *_backends(lambda i: (i.q, i.k, i.v), causal),
            self._flex(_flex_causal, lambda i: (i.q, i.k, i.v, _causal_blocks(i))),
        ]

    def _flex(self, function: Callable[..., object], arguments: Arguments) -> Candidate:
        if not self.off and self.spent_s > FLEX_S:
            return missing(FLEX, f"compiling it for other shapes took {FLEX_S:g} s")
        return self.compiled(function, arguments, FLEX)


# --- index, store and metadata


def _masked(weights: Tensor, ids: Tensor, start: int, length: int) -> Tensor:
    """Make the eager operations of a vocabulary-parallel embedding."""
    local = ids - start
    elsewhere = (local < 0) | (local >= length)
    rows = F.embedding(local.masked_fill_(elsewhere, 0), weights)
    return rows.masked_fill_(elsewhere.unsqueeze(-1), 0)


def _masked_out(out: Tensor, weights: Tensor, ids: Tensor, start: int, length: int) -> None:
    local = ids - start
    here = (local >= 0) & (local < length)
    out.copy_(torch.where(here.unsqueeze(-1), weights[torch.where(here, local, 0)], 0))


def _take(out: Tensor, weights: Tensor, ids: Tensor) -> None:
    out.copy_(weights[ids])


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


def _vectorised(extend_lens: Tensor, seq_lens: Tensor, tokens: int) -> tuple[Tensor, ...]:
    ends = F.pad(torch.cumsum(extend_lens, 0, dtype=torch.int32), (1, 0))
    requests = torch.arange(len(extend_lens), dtype=torch.int32, device=extend_lens.device)
    request_index = torch.repeat_interleave(requests, extend_lens, output_size=tokens)
    first = seq_lens - extend_lens + 1 - ends[:-1]
    expanded = first[request_index] + torch.arange(tokens, dtype=torch.int32, device=extend_lens.device)
    return expanded, expanded.clamp(max=TOPK), ends, expanded - 1, request_index, ends[-1:]


# --- attention


def _backends(arguments: Arguments, attends: Callable[..., Tensor]) -> Iterator[Candidate]:
    """Yield scaled_dot_product_attention by each backend."""
    for name, backend in BACKENDS.items():
        if name in ON_CPU or torch.cuda.is_available():
            yield allocating(f"torch {name}", partial(_by, backend, attends), arguments)
        else:
            yield missing(f"torch {name}", "needs a GPU")


def _by(backend: SDPBackend, attends: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return attends(*tensors)


def _rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v).flatten(1, 2)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend to whole prompts."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def _gathered(q: Tensor, pages: Tensor, kv: Tensor, length: int) -> Tensor:
    """Gather the pages and attend: what a program without a kernel for pages does."""
    k, v = (cache[pages].flatten(1, 2)[:, :length].transpose(1, 2) for cache in kv)
    return _rows(q, k, v)


def _flex_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    rows: Tensor = flex_attention(q, k, v)
    return rows.flatten(1, 2)


def _flex_causal(q: Tensor, k: Tensor, v: Tensor, blocks: Any) -> object:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, v, block_mask=blocks, enable_gqa=q.shape[1] != k.shape[1])


def _causal_blocks(inputs: Prefilling) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    length, device = inputs.case.length, inputs.q.device
    return create_block_mask(_not_later, None, None, length, length, device=str(device))


def _not_later(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key
