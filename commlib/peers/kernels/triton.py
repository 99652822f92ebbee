"""Triton's kernels as peers: what one writes by hand; without Triton or a GPU they are listed with the reason."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from commlib.peers.kernels.case import Candidate, Case, missing
from commlib.timing import Run

ROW_BLOCK, SPLIT_BLOCK = 8192, 1024  # elements of a program: a row, and a part of one where rows are few
Launch = Callable[[ModuleType, Any, int], Run]  # of what triton_code has, on inputs, with so many elements a program


def gathers(case: Case) -> list[Candidate]:
    """Return the gather with one program for each row, and with several."""
    block = _power_of_two(case.dim)
    found = [_peer("triton row", _gather, min(block, ROW_BLOCK))]
    return found + ([_peer("triton split", _gather, SPLIT_BLOCK)] if block > SPLIT_BLOCK else [])


def scatters(case: Case) -> list[Candidate]:
    """Return the scatter of K and V with one program for each token."""
    return [_peer("triton", _scatter, min(_power_of_two(case.dim), ROW_BLOCK))]


def metadata(case: Case) -> list[Candidate]:
    """Return torch's cumsum and a kernel with one program for each request."""
    return [_peer("triton", _metadata, _power_of_two(case.dim))]


def _peer(label: str, launch: Launch, block: int) -> Candidate:
    if importlib.util.find_spec("triton") is None:
        return missing(label, "Triton is not installed")
    if not torch.cuda.is_available():
        return missing(label, "Triton needs a GPU")
    from commlib.peers.kernels import triton_code

    return Candidate(label, lambda inputs: launch(triton_code, inputs, block))


def _gather(code: ModuleType, inputs: Any, block: int) -> Run:
    out, weights, ids = inputs.out, inputs.weights, inputs.ids
    kernel = code.gather[len(ids), -(-out.shape[1] // block)]
    numbers = (out.shape[1], weights.stride(0), inputs.start, inputs.length)
    options = {"BLOCK": block, "MASKED": inputs.vocab_range is not None, "num_warps": _warps(block)}
    return lambda: kernel(out, weights, ids, *numbers, **options)


def _scatter(code: ModuleType, inputs: Any, block: int) -> Run:
    tensors = (inputs.k_cache, inputs.v_cache, inputs.slots, inputs.k, inputs.v)
    kernel = code.scatter[len(inputs.slots), -(-inputs.k.shape[1] // block)]
    numbers = (inputs.k.shape[1], 1 / inputs.k_scale, 1 / inputs.v_scale)
    options = {"BLOCK": block, "QUANTISES": inputs.quantises, "LIMIT": inputs.limit, "num_warps": _warps(block)}
    return lambda: kernel(*tensors, *numbers, **options)


def _metadata(code: ModuleType, inputs: Any, block: int) -> Run:
    ends = inputs.outputs[2][1:]
    kernel = code.metadata[len(ends),]
    tensors = (*inputs.outputs, inputs.extend_lens, inputs.seq_lens)

    def run() -> None:
        torch.cumsum(inputs.extend_lens, 0, dtype=torch.int32, out=ends)
        kernel(*tensors, inputs.topk, BLOCK=block)

    return run


def _warps(block: int) -> int:
    return max(1, min(8, block // 256))


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()
