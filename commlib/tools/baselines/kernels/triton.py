"""Triton's kernels as peers: what one writes by hand; without Triton or a GPU they are listed with the reason."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import torch

from commlib.tools.baselines.kernels.case import FLOOR, Candidate, Case, missing
from commlib.tools.baselines.peer import in_turn
from commlib.tools.timing import Run

ROW_BLOCK, SPLIT_BLOCK = 8192, 1024  # elements of a program: a row, and a part of one where rows are few
READ_BLOCK = 8192
Launch = Callable[[ModuleType, Any, int], Run]  # of what triton_code has, on inputs, with so many elements a program


def gathers(case: Case) -> list[Candidate]:
    """Return the gather with one program for each row, and with several."""
    found = [_peer("triton row", _gather, min(_block(case), ROW_BLOCK))]
    return found + ([_peer("triton split", _gather, SPLIT_BLOCK)] if _block(case) > SPLIT_BLOCK else [])


def scatters(case: Case) -> list[Candidate]:
    """Return the scatter of K and V with one program for each token."""
    return [_peer("triton", _scatter, min(_block(case), ROW_BLOCK))]


def metadata(case: Case) -> list[Candidate]:
    """Return torch's cumsum and a kernel with one program for each request."""
    return [_peer("triton", _metadata, _block(case))]


def read(label: str) -> Candidate:
    """Return the floor that reads the source of a set, and writes next to nothing."""
    return replace(_peer(label, _read, READ_BLOCK), role=FLOOR)


def _block(case: Case) -> int:
    return 1 << max(case.dim - 1, 0).bit_length()  # Triton wants a power of two


def _peer(label: str, launch: Launch, block: int) -> Candidate:
    if importlib.util.find_spec("triton") is None:
        return missing(label, "Triton is not installed")
    if not torch.cuda.is_available():
        return missing(label, "Triton needs a GPU")
    from commlib.tools.baselines.kernels import triton_code

    return Candidate(label, lambda inputs: launch(triton_code, inputs, block))


def _gather(code: ModuleType, inputs: Any, block: int) -> Run:
    dim = inputs.out.shape[1]
    kernel = code.gather[len(inputs.ids), -(-dim // block)]
    tensors = (inputs.out, inputs.weights, inputs.ids)
    numbers = (dim, inputs.weights.stride(0), inputs.start, inputs.length)
    options = {"BLOCK": block, "MASKED": inputs.vocab_range is not None, "num_warps": _warps(block)}
    return partial(kernel, *tensors, *numbers, **options)


def _scatter(code: ModuleType, inputs: Any, block: int) -> Run:
    dim = inputs.k.shape[1]
    kernel = code.scatter[len(inputs.slots), -(-dim // block)]
    tensors = (inputs.k_cache, inputs.v_cache, inputs.slots, inputs.k, inputs.v)
    numbers = (dim, 1 / inputs.k_scale, 1 / inputs.v_scale)
    options = {"BLOCK": block, "QUANTISES": inputs.quantises, "LIMIT": inputs.limit, "num_warps": _warps(block)}
    return partial(kernel, *tensors, *numbers, **options)


def _metadata(code: ModuleType, inputs: Any, block: int) -> Run:
    ends = inputs.outputs[2][1:]
    tensors = (*inputs.outputs, inputs.extend_lens, inputs.seq_lens)
    return in_turn(
        partial(torch.cumsum, inputs.extend_lens, 0, dtype=torch.int32, out=ends),
        partial(code.metadata[len(ends),], *tensors, inputs.topk, BLOCK=block),
    )


def _read(code: ModuleType, inputs: Any, block: int) -> Run:
    words = inputs.source[: len(inputs.source) // 4 * 4].view(torch.int32)
    programs = -(-len(words) // block)
    return partial(code.read[programs,], words.new_empty(programs), words, len(words), BLOCK=block, num_warps=8)


def _warps(block: int) -> int:
    return max(1, min(8, block // 256))
