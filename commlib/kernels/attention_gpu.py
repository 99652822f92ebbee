"""Decode attention on a GPU: how the work is divided, and the launches of attention_code.py."""

from __future__ import annotations

import importlib.util
from functools import cache, lru_cache
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from commlib.errors import Unsupported
from commlib.kernels.attention import FP8, Call
from commlib.kernels.dispatch import Scale

MIN_ROWS = 16  # of a product on tensor cores
MIN_SPAN = 128  # keys: shorter spans cost more to add up than they save
MAX_SPANS = 128  # of a query, where their number is chosen here
# In keys: what a program costs besides its keys, until its first ones are there; what adding up the spans costs, once
# and for each span.
PROGRAM_TOKENS, ADD_TOKENS, SPAN_TOKENS = 128, 128, 6
BUSY = 0.6  # of the programs that a GPU has room for: fewer do not fill its memory's bandwidth
ROUNDS = 4  # of programs on the GPU, where each takes several spans in turn
LOG2_E = 1.4426950408889634


class Tuning(NamedTuple):
    """How the kernel is compiled, and by how many spans a query is divided."""

    block: int  # keys of a step
    warps: int
    stages: int  # of the loop over steps: how far ahead it loads
    resident: int = 2  # programs of a multiprocessor at once
    spans: int = 0  # 0: as many as keep the GPU busy
    early: bool | None = None  # what adds the spans up starts while they are computed; None: where there is room


def tuning_of(call: Call) -> Tuning:
    """Return what suits the type and the features of a key: steps of 8 KiB of K, two of them loaded ahead.

    Many small programs are as fast as few large ones, and leave less of the GPU idle at the end.
    """
    if call.q.dtype == torch.float32:
        return Tuning(32, 4, 2)
    if call.group > MIN_ROWS:
        return Tuning(32, 8, 2)
    width = _width(call)
    if width > 128:
        return Tuning(32, 4, 3)
    if call.k_cache.dtype == FP8:
        return Tuning(64, 2, 3, resident=4)
    return Tuning(64 if width <= 64 else 32, 2, 3, resident=5)


def launch(call: Call, tuning: Tuning | None = None) -> None:
    """Run it on the current stream: one launch, and one more where queries have several spans."""
    if not call.out.numel():
        return
    code = _code()
    tuning = tuning or tuning_of(call)
    queries, heads, dim = call.q.shape
    programs = queries * call.k_cache.shape[2]
    room = multiprocessors(call.q.device) * tuning.resident
    slots, grid = _division(call, programs, tuning, room)
    whole = slots == 1
    # What adds the spans up may wait on the GPU for them: it takes the place of other programs.
    early_fits = programs * grid <= room // 2 and _capability(call.q.device) >= (9, 0)
    early = not whole and (early_fits if tuning.early is None else tuning.early)
    part_log = None if whole else call.q.new_empty((queries, heads, slots), dtype=torch.float32)
    part = None if part_log is None else part_log.new_empty((queries, heads, slots, dim))
    k_scale, k_number, k_step = _scale(call.scales[0])
    v_scale, v_number, v_step = _scale(call.scales[1])
    tables = call.tables
    stride_row = tables.stride(0) if call.starts is None else 0
    place = (call.rows, tables.shape[-1])
    lengths = (call.lengths.stride(0), stride_row, call.span_tokens, grid)
    shape = {"PAGE": call.page_size, "DIM": dim, "BLOCK": tuning.block, "WIDTH": _width(call)}
    with torch.cuda.device_of(call.q):
        code.attend_spans[(programs, grid)](
            *(call.out, part, part_log, call.q, call.k_cache, call.v_cache, tables, call.lengths),
            *(call.starts, call.request_index, k_scale, v_scale),
            *(*place, len(call.k_cache), *lengths, slots, k_step, v_step, call.scale * k_number * LOG2_E, v_number),
            *(*call.q.stride()[:2], *call.out.stride()[:2], *call.k_cache.stride()[:3], *call.v_cache.stride()[:3]),
            KV_HEADS=call.k_cache.shape[2],
            GROUP=call.group,
            ROWS=max(MIN_ROWS, _power(call.group)),
            WITHIN=call.page_size % tuning.block == 0 and call.span_tokens % tuning.block == 0,
            WHOLE=whole,
            EARLY=early,
            **shape,
            num_warps=tuning.warps,
            num_stages=tuning.stages,
        )
        if not whole:
            code.add_spans[(queries * heads,)](
                *(call.out, part, part_log, call.lengths, call.starts, call.request_index),
                *(*place, *lengths, slots, *call.out.stride()[:2]),
                HEADS=heads,
                **shape,
                EARLY=early,
                num_warps=4,
                launch_pdl=early,
            )


def _division(call: Call, programs: int, tuning: Tuning, room: int) -> tuple[int, int]:
    """Return how many spans a query can have, and how many programs share them; neither needs the lengths."""
    if call.span_tokens:
        spans = max(1, -(-call.max_tokens // call.span_tokens))
        return spans, min(spans, max(1, -(-ROUNDS * room // programs)))
    spans = tuning.spans or spans_for(programs, call.max_tokens, room)
    return spans, spans


@lru_cache(maxsize=1024)
def spans_for(programs: int, tokens: int, room: int) -> int:
    """Return the number of spans with which a GPU with room for so many programs is done first."""

    def took(spans: int) -> float:
        full, rest = divmod(programs * spans, room)
        begun = full + (rest > 0)
        idle = max(0.0, BUSY - rest / room) / begun if rest else 0.0  # programs of several rounds end at several times
        added = ADD_TOKENS + SPAN_TOKENS * spans if spans > 1 else 0
        return (programs * spans / room + idle) * -(-tokens // spans) + begun * PROGRAM_TOKENS + added

    return min(range(1, max(1, min(MAX_SPANS, tokens // MIN_SPAN)) + 1), key=took)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@cache
def multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def _code() -> ModuleType:
    if importlib.util.find_spec("triton") is None:
        raise Unsupported("decode_attention on a GPU needs Triton, which is not installed: `pip install triton`")
    from commlib.kernels import attention_code

    return attention_code


def _scale(scale: Scale) -> tuple[Tensor | None, float, int]:
    """Return a tensor or None, the number to multiply by besides, and the step from head to head."""
    if isinstance(scale, Tensor):
        return scale, 1.0, int(scale.numel() > 1)
    return None, 1.0 if scale is None else float(scale), 0


def _width(call: Call) -> int:
    return max(MIN_ROWS, _power(call.q.shape[2]))


def _power(count: int) -> int:
    """Return the smallest power of two that is not below."""
    return 1 << (count - 1).bit_length()
