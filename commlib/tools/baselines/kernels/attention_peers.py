"""Who else computes attention: torch's backends, FlexAttention, flash-attn and FlashInfer, or why one is not here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from commlib.kernels.attention import FP8
from commlib.tools.baselines.kernels.case import OURS, Candidate, allocating, missing
from commlib.tools.baselines.kernels.compiled import Compiler
from commlib.tools.timing import Run

if TYPE_CHECKING:
    from commlib.tools.baselines.kernels.attention import AttentionCase, Decoding, Prefilling

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
ON_CPU = ("flash", "math")
LABEL, GATHER = "torch {}", "gather, torch"
FLEX, FLASH, INFER = "FlexAttention", "flash-attn", "FlashInfer"
FLEX_S = 45.0  # of compiling in a run; shapes that come later are left out
WORKSPACE_BYTES = 128 << 20  # that FlashInfer asks for
PAGE = 16


def decode(case: AttentionCase, compiled: Compiler) -> list[Candidate]:
    """Return who attends with a query for each request; all but FlashInfer to a dense copy, which is made before."""
    if case.ragged or case.kept_as == FP8:
        reason = "reads no 8-bit cache" if case.kept_as == FP8 else "is measured with equal lengths"
        return [
            *(missing(label, reason) for label in [GATHER, *map(LABEL.format, BACKENDS), FLEX, FLASH]),
            *_infer(_infer_decode),
        ]
    return [
        allocating(GATHER, _gathered, lambda i: (i.grouped, i.tables.long(), i.kv, i.case.length)),
        *_backends(lambda i: (i.grouped, *i.dense), _rows),
        _flex(compiled, _flex_decode, lambda i: (i.grouped, *i.dense)),
        _optional(FLASH, "flash_attn", _flash_decode),
        *_infer(_infer_decode),
    ]


def prefill(case: AttentionCase, compiled: Compiler) -> list[Candidate]:
    """Return who attends to whole prompts."""
    one = case.n == 1
    return [
        Candidate(GATHER, _by_request, OURS),
        allocating("torch", _causal, lambda i: (i.q, i.k, i.v)),
        *_backends(lambda i: (i.q, i.k, i.v), _causal),
        _flex(compiled, _flex_prefill, lambda i: (i.q, i.k, i.v, _causal_blocks(i))),
        _optional(FLASH, "flash_attn", _flash_prefill),
        *(_infer(_infer_prefill) if one else [missing(INFER, "is measured with one request")]),
    ]


def _backends(arguments: Callable[[Any], tuple[Any, ...]], attends: Callable[..., Tensor]) -> Iterator[Candidate]:
    """Yield scaled_dot_product_attention by each backend alone."""
    for name, backend in BACKENDS.items():
        if name in ON_CPU or torch.cuda.is_available():
            yield allocating(LABEL.format(name), partial(_by, backend, attends), arguments)
        else:
            yield missing(LABEL.format(name), "needs a GPU")


def _by(backend: SDPBackend, attends: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return attends(*tensors)


def _rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v).flatten(1, 2)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def _gathered(q: Tensor, pages: Tensor, kv: Tensor, length: int) -> Tensor:
    """Gather the pages and attend: what a program without a kernel for pages does."""
    k, v = (cache[pages].flatten(1, 2)[:, :length].transpose(1, 2) for cache in kv)
    return _rows(q, k, v)


def _by_request(inputs: Prefilling) -> Run:
    """Return what examples/llama does with prompts: torch over the gathered pages of one after the other."""
    case, pages = inputs.case, -(-inputs.case.length // PAGE)
    tables = torch.arange(case.n * pages, dtype=torch.int32, device=inputs.q.device).view(case.n, pages)
    padded = (F.pad(x.transpose(1, 2), (0, 0, 0, 0, 0, pages * PAGE - case.length)) for x in (inputs.k, inputs.v))
    caches = [x.reshape(-1, PAGE, *x.shape[2:]) for x in padded]

    def attended() -> Tensor:
        out = torch.empty_like(inputs.q)
        for q, table, y in zip(inputs.q, tables, out, strict=True):
            k, v = (cache[table].flatten(0, 1)[: case.length].transpose(0, 1)[None] for cache in caches)
            y.copy_(_causal(q[None], k, v)[0])
        return out

    return _kept(inputs, attended)


def _flex(
    compiled: Compiler, function: Callable[..., object], arguments: Callable[[Any], tuple[Any, ...]]
) -> Candidate:
    if not compiled.off and compiled.spent_s > FLEX_S:
        return missing(FLEX, f"compiling it for other shapes took {FLEX_S:g} s")
    return replace(compiled(function, arguments), label=FLEX)


def _flex_decode(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    found: Tensor = flex_attention(q, k, v)
    return found.flatten(1, 2)


def _flex_prefill(q: Tensor, k: Tensor, v: Tensor, blocks: Any) -> object:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, v, block_mask=blocks, enable_gqa=q.shape[1] != k.shape[1])


def _causal_blocks(inputs: Prefilling) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    length, device = inputs.case.length, inputs.q.device
    return create_block_mask(_not_later, None, None, length, length, device=str(device))


def _not_later(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def _optional(label: str, module: str, prepare: Callable[[Any, Any], Run]) -> Candidate:
    """Return a candidate of a package, which is imported when it is prepared."""
    if importlib.util.find_spec(module) is None:
        return missing(label, f"{module} is not installed")
    if not torch.cuda.is_available():
        return missing(label, "needs a GPU")
    return Candidate(label, lambda inputs: prepare(importlib.import_module(module), inputs))


def _infer(prepare: Callable[[Any, Any], Run]) -> list[Candidate]:
    return [_optional(INFER, "flashinfer", prepare)]


def _kept(inputs: Any, call: Callable[[], Tensor]) -> Run:
    """Return the call with its result kept until the set's next turn."""

    def run() -> Tensor:
        inputs.kept = call()
        kept: Tensor = inputs.kept
        return kept

    return run


def _flash_decode(library: Any, inputs: Decoding) -> Run:
    k, v = (x.transpose(1, 2).contiguous() for x in inputs.dense)
    call = partial(library.flash_attn_with_kvcache, inputs.q[:, None], k, v, cache_seqlens=inputs.lengths, causal=True)
    return _kept(inputs, lambda: call()[:, 0])


def _flash_prefill(library: Any, inputs: Prefilling) -> Run:
    q, k, v = (x.transpose(1, 2).contiguous() for x in (inputs.q, inputs.k, inputs.v))
    return _kept(inputs, lambda: library.flash_attn_func(q, k, v, causal=True).transpose(1, 2))


def _infer_decode(library: Any, inputs: Decoding) -> Run:
    """Plan once, outside of what is timed; run over the same pages as ours."""
    case, size = inputs.case, inputs.case.page_size
    counts = (inputs.lengths + size - 1) // size
    starts = F.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    indices = torch.cat([row[:count] for row, count in zip(inputs.tables, counts.tolist(), strict=True)])
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=inputs.q.device)
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    shape = (case.heads, case.kv_heads, case.dim, size)
    types = {"q_data_type": case.dtype, "kv_data_type": case.kept_as}
    wrapper.plan(starts, indices, (inputs.lengths - 1) % size + 1, *shape, **types)
    return partial(wrapper.run, inputs.q, (inputs.k_cache, inputs.v_cache), out=inputs.out, **inputs.scales)


def _infer_prefill(library: Any, inputs: Prefilling) -> Run:
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (inputs.q, inputs.k, inputs.v))
    call = partial(library.single_prefill_with_kv_cache, q, k, v, causal=True)
    return _kept(inputs, lambda: call().transpose(0, 1)[None])
