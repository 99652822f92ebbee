"""Triton as a baseline: what one writes by hand; without Triton or a GPU it is listed with the reason."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch

from commlib.tools.baselines.kernels.case import FLOOR, PEER, Baseline, Candidate, Case, missing
from commlib.tools.baselines.peer import in_turn
from commlib.tools.timing import Run

ROW_BLOCK, SPLIT_BLOCK = 8192, 1024  # elements of a program: a row, and a part of one where rows are few
READ_BLOCK = 8192


class Triton(Baseline):
    """Kernels in Triton; their source is triton_code."""

    name = "triton"

    def index(self, case: Case) -> list[Candidate]:
        block = _block(case)
        split = [_candidate("triton split", _gather, SPLIT_BLOCK)] if block > SPLIT_BLOCK else []
        return [_candidate("triton row", _gather, min(block, ROW_BLOCK)), *split]

    def store(self, case: Case) -> list[Candidate]:
        return [_candidate("triton", _scatter, min(_block(case), ROW_BLOCK))]

    def metadata(self, case: Case) -> list[Candidate]:
        return [_candidate("triton", _metadata, _block(case))]


def read() -> Candidate:
    """Return the floor that reads the source of a set, and writes next to nothing."""
    return _candidate("read, Triton", _read, READ_BLOCK, FLOOR)


def _block(case: Case) -> int:
    return 1 << max(case.dim - 1, 0).bit_length()  # Triton wants a power of two


def _candidate(label: str, launch: Callable[[ModuleType, Any, int], Run], block: int, role: str = PEER) -> Candidate:
    """Return what launches a kernel of triton_code on inputs, with so many elements a program."""
    if importlib.util.find_spec("triton") is None:
        return missing(label, "Triton is not installed", role)
    if not torch.cuda.is_available():
        return missing(label, "Triton needs a GPU", role)
    from commlib.tools.baselines.kernels import triton_code

    return Candidate(label, lambda inputs: launch(triton_code, inputs, block), role)


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
    source = inputs.source[: len(inputs.source) // 4 * 4].view(torch.int32)
    programs = -(-len(source) // block)
    return partial(code.read[programs,], source.new_empty(programs), source, len(source), BLOCK=block, num_warps=8)


def _warps(block: int) -> int:
    return max(1, min(8, block // 256))
