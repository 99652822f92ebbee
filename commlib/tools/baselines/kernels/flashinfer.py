"""FlashInfer as a baseline of attention: it reads the same pages as ours, by a plan that is made before."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from commlib.tools.baselines.kernels.case import Baseline, Candidate, holding, missing, package
from commlib.tools.timing import Run

if TYPE_CHECKING:
    from commlib.tools.baselines.kernels.attention import Attention, Decoding, Prefilling

WORKSPACE_BYTES = 128 << 20  # that it asks for


class FlashInfer(Baseline):
    name = "FlashInfer"

    def decode(self, case: Attention) -> list[Candidate]:
        return [package(self.name, "flashinfer", _decode)]

    def prefill(self, case: Attention) -> list[Candidate]:
        many = case.n > 1
        return [
            missing(self.name, "is measured with one request") if many else package(self.name, "flashinfer", _prefill)
        ]


def _decode(library: Any, inputs: Decoding) -> Run:
    """Plan once, outside of what is timed; run over the same pages as ours."""
    case, size = inputs.case, inputs.case.page_size
    counts = (inputs.lengths + size - 1) // size
    starts = F.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    indices = torch.cat([row[:count] for row, count in zip(inputs.tables, counts.tolist(), strict=True)])
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=inputs.q.device)
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    shape = (case.heads, case.kv_heads, case.dim, size)
    types = {"q_data_type": case.dtype, "kv_data_type": case.cache_dtype}
    wrapper.plan(starts, indices, (inputs.lengths - 1) % size + 1, *shape, **types)
    return partial(wrapper.run, inputs.q, (inputs.k_cache, inputs.v_cache), out=inputs.out, **inputs.scales)


def _prefill(library: Any, inputs: Prefilling) -> Run:
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (inputs.q, inputs.k, inputs.v))
    call = partial(library.single_prefill_with_kv_cache, q, k, v, causal=True)
    return holding(inputs, lambda: call().transpose(0, 1)[None])
