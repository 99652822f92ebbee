"""flash-attn as a baseline of attention; it reads a dense copy, which is made before."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from commlib.tools.baselines.kernels.case import Baseline, Candidate, holding, missing, package
from commlib.tools.timing import Run

if TYPE_CHECKING:
    from commlib.tools.baselines.kernels.attention import Attention, Decoding, Prefilling


class FlashAttn(Baseline):
    name = "flash-attn"

    def decode(self, case: Attention) -> list[Candidate]:
        return [missing(self.name, case.not_dense) if case.not_dense else package(self.name, "flash_attn", _decode)]

    def prefill(self, case: Attention) -> list[Candidate]:
        return [package(self.name, "flash_attn", _prefill)]


def _decode(library: Any, inputs: Decoding) -> Run:
    k, v = (x.transpose(1, 2).contiguous() for x in inputs.dense)
    call = partial(library.flash_attn_with_kvcache, inputs.q[:, None], k, v, cache_seqlens=inputs.lengths, causal=True)
    return holding(inputs, lambda: call()[:, 0])


def _prefill(library: Any, inputs: Prefilling) -> Run:
    q, k, v = (x.transpose(1, 2).contiguous() for x in (inputs.q, inputs.k, inputs.v))
    return holding(inputs, lambda: library.flash_attn_func(q, k, v, causal=True).transpose(1, 2))
