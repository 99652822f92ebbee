"""The Triton source of decode attention: spans of keys, then their sum; in Triton's style."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

CHUNK = tl.constexpr(16)  # spans that are added at a time
# What differs from call to call: no kernel is compiled for a value of these.
CHANGING = (
    *("rows", "width", "pages", "stride_length", "stride_row", "span_tokens", "splits", "slots"),
    *("k_scale_stride", "v_scale_stride"),
)


@triton.jit
def _keys(lengths, starts, request_index, query, rows, width, stride_length, stride_row, PAGE: tl.constexpr):
    """Return where the query's entries of the table begin, and how many keys it has, no more than the table holds."""
    row = query
    if request_index is not None:
        row = tl.load(request_index + query).to(tl.int64)
    known = (row >= 0) & (row < rows)
    begin = row * stride_row
    if starts is not None:
        begin = tl.load(starts + row, mask=known, other=0).to(tl.int64)
        known = known & (begin >= 0) & (begin <= width)
        room = (width - begin) * PAGE
    else:
        room = tl.full([], width, tl.int64) * PAGE
    length = tl.minimum(tl.load(lengths + query * stride_length).to(tl.int64), room)
    length = tl.where(known, tl.maximum(length, 0), 0).to(tl.int32)
    return begin, length


@triton.jit
def _span_of(length, span_tokens, splits, BLOCK: tl.constexpr):
    """Return how many keys a span has, and how many spans a query."""
    if span_tokens == 0:
        span = tl.cdiv(tl.cdiv(length, splits), BLOCK) * BLOCK
        span = tl.maximum(span, BLOCK)
    else:
        span = span_tokens
    return span, tl.cdiv(length, span)


@triton.jit
def _pages(table, start, last, step, PAGE: tl.constexpr, WITHIN: tl.constexpr):
    """Return the entry of each key of a step; WITHIN: one for all, as a step is within a page."""
    if WITHIN:
        page = tl.load(table + start // PAGE, mask=start < last, other=-1)
    else:
        token = start + step
        page = tl.load(table + token.to(tl.uint32) // PAGE, mask=token < last, other=-1)
    return page


@triton.jit
def _attend(
    q,
    k_head,
    v_head,
    table,
    first,
    last,
    pages,
    k_stride_page,
    k_stride_token,
    v_stride_page,
    v_stride_token,
    scale,
    PAGE: tl.constexpr,
    WITHIN: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Return sums over keys first to last: weighted values, weights, and the largest score (base 2) of each row."""
    column = tl.arange(0, WIDTH)
    inside = column[None, :] < DIM
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    weight = tl.zeros([ROWS, BLOCK], tl.float32)  # added up in the end: warps need not wait for each other
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    step = tl.arange(0, BLOCK)
    following = _pages(table, first, last, step, PAGE, WITHIN)
    for start in range(first, last, BLOCK):
        token = start + step
        page = following.to(tl.int64)
        seen = (page >= 0) & (page < pages)
        if WITHIN:
            seen = seen & (token < last)
        # One step ahead of the keys, whose addresses wait for it.
        following = _pages(table, start + BLOCK, last, step, PAGE, WITHIN)
        place = start % PAGE + step if WITHIN else (token.to(tl.uint32) % PAGE).to(tl.int32)
        loaded = seen[:, None] if DIM == WIDTH else seen[:, None] & inside
        k_row = page * k_stride_page + place * k_stride_token
        k = tl.load(k_head + k_row[:, None] + column[None, :], mask=loaded, other=0.0)
        v_row = page * v_stride_page + place * v_stride_token
        v = tl.load(v_head + v_row[:, None] + column[None, :], mask=loaded, other=0.0)
        score = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * scale[:, None]
        score = tl.where(seen[None, :], score, float("-inf"))
        higher = tl.maximum(largest, tl.max(score, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(largest - finite)
        share = tl.exp2(score - finite[:, None])
        weight = weight * shrink[:, None] + share
        total = tl.dot(share.to(q.dtype), v.to(q.dtype), total * shrink[:, None], input_precision="ieee")
        largest = higher
    return total, tl.sum(weight, 1), largest


@triton.jit(do_not_specialize=CHANGING)
def attend_spans(
    out,
    part,
    part_log,
    q,
    k_cache,
    v_cache,
    tables,
    lengths,
    starts,
    request_index,
    k_scale,
    v_scale,
    rows,
    width,
    pages,
    stride_length,
    stride_row,
    span_tokens,
    splits,
    slots,
    k_scale_stride,
    v_scale_stride,
    scale,
    v_factor,
    q_stride_query,
    q_stride_head,
    out_stride_query,
    out_stride_head,
    k_stride_page,
    k_stride_token,
    k_stride_head,
    v_stride_page,
    v_stride_token,
    v_stride_head,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    WITHIN: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Attend to spans of the keys of one query and one KV head; WHOLE: one span is all, and this is the result."""
    if EARLY:
        gdc_launch_dependents()
    head = tl.program_id(0) % KV_HEADS
    query = (tl.program_id(0) // KV_HEADS).to(tl.int64)
    begin, length = _keys(lengths, starts, request_index, query, rows, width, stride_length, stride_row, PAGE)
    span, count = _span_of(length, span_tokens, splits, BLOCK)
    column = tl.arange(0, WIDTH)
    member = tl.arange(0, ROWS)
    inside = (member[:, None] < GROUP) & (column[None, :] < DIM)
    first_head = head * GROUP + member
    q_at = q + query * q_stride_query + first_head[:, None] * q_stride_head + column[None, :]
    queries = tl.load(q_at, mask=inside, other=0.0)
    k_head = k_cache + head.to(tl.int64) * k_stride_head
    v_head = v_cache + head.to(tl.int64) * v_stride_head
    factor = tl.full([ROWS], 1.0, tl.float32) * scale
    if queries.dtype == tl.bfloat16 and k_cache.dtype.element_ty != tl.bfloat16:
        # 8-bit floats become float16 in one instruction, bfloat16 in several; float16 holds less than a query may have.
        peak = tl.max(tl.abs(queries.to(tl.float32)), 1)
        peak = tl.where(peak == 0, 1.0, peak)
        queries = (queries.to(tl.float32) / peak[:, None]).to(tl.float16)
        factor = factor * peak
    grown = v_factor
    if k_scale is not None:
        factor = factor * tl.load(k_scale + head * k_scale_stride)
    if v_scale is not None:
        grown = grown * tl.load(v_scale + head * v_scale_stride)
    if WHOLE:
        total, weight, largest = _attend(
            queries,
            k_head,
            v_head,
            tables + begin,
            0,
            length,
            pages,
            k_stride_page,
            k_stride_token,
            v_stride_page,
            v_stride_token,
            factor,
            PAGE,
            WITHIN,
            DIM,
            BLOCK,
            ROWS,
            WIDTH,
        )
        result = total / tl.where(weight == 0, 1.0, weight)[:, None] * grown
        out_at = out + query * out_stride_query + first_head[:, None] * out_stride_head + column[None, :]
        tl.store(out_at, result.to(out.dtype.element_ty), mask=inside)
    else:
        for number in range(tl.program_id(1), count, tl.num_programs(1)):
            total, weight, largest = _attend(
                queries,
                k_head,
                v_head,
                tables + begin,
                number * span,
                tl.minimum(number * span + span, length),
                pages,
                k_stride_page,
                k_stride_token,
                v_stride_page,
                v_stride_token,
                factor,
                PAGE,
                WITHIN,
                DIM,
                BLOCK,
                ROWS,
                WIDTH,
            )
            result = total / tl.where(weight == 0, 1.0, weight)[:, None] * grown
            log = tl.where(weight == 0, float("-inf"), largest + tl.log2(tl.where(weight == 0, 1.0, weight)))
            slot = (query * (KV_HEADS * GROUP) + first_head) * slots + number
            tl.store(part + slot[:, None] * DIM + column[None, :], result, mask=inside)
            tl.store(part_log + slot, log, mask=member < GROUP)


@triton.jit(do_not_specialize=CHANGING)
def add_spans(
    out,
    part,
    part_log,
    lengths,
    starts,
    request_index,
    rows,
    width,
    stride_length,
    stride_row,
    span_tokens,
    splits,
    slots,
    out_stride_query,
    out_stride_head,
    HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Add the spans of one query and one head by the logarithms of their weights; no span gives zeros."""
    head = tl.program_id(0) % HEADS
    query = (tl.program_id(0) // HEADS).to(tl.int64)
    _, length = _keys(lengths, starts, request_index, query, rows, width, stride_length, stride_row, PAGE)
    _, count = _span_of(length, span_tokens, splits, BLOCK)
    column = tl.arange(0, WIDTH)
    base = (query * HEADS + head) * slots
    if EARLY:
        gdc_wait()
    total = tl.zeros([WIDTH], tl.float32)
    weight = tl.full([], 0.0, tl.float32)
    largest = tl.full([], float("-inf"), tl.float32)
    for start in range(0, count, CHUNK):
        number = start + tl.arange(0, CHUNK)
        log = tl.load(part_log + base + number, mask=number < count, other=float("-inf"))
        there = (log[:, None] > float("-inf")) & (column[None, :] < DIM)
        loaded = tl.load(part + (base + number)[:, None] * DIM + column[None, :], mask=there, other=0.0)
        higher = tl.maximum(largest, tl.max(log, 0))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(largest - finite)
        share = tl.exp2(log - finite)
        total = total * shrink + tl.sum(loaded * share[:, None], 0)
        weight = weight * shrink + tl.sum(share, 0)
        largest = higher
    result = total / tl.where(weight == 0, 1.0, weight)
    out_at = out + query * out_stride_query + head * out_stride_head + column
    tl.store(out_at, result.to(out.dtype.element_ty), mask=column < DIM)
