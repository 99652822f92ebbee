"""Measure how many chunks a tp.Pipeline computes a number of tokens in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from commlib.counts import counted
from commlib.tools.timing import Protocol, Run, measure_calls, ratio_of_medians
from commlib.tp.pipeline import Chunks, Pipeline

CHUNKS: Sequence[Chunks] = (2, (1, 2, 1), 4, 8)
BLOCKS = (9, 49)  # the fewest and the most of each


def tune_pipeline(
    pipeline: Pipeline,
    prepare: Callable[[int], Run],
    tokens: Sequence[int],
    chunks: Sequence[Chunks] = CHUNKS,
    seconds: float = 2.0,
) -> dict[int, Chunks]:
    """Measure a rule, set it, and return it; every rank must call this with the same arguments.

    A number of chunks is chosen where it is faster than one after the other by more than measuring varies.

    Args:
        pipeline: Gets the rule.
        prepare: Returns what computes so many tokens with this pipeline: Llama.between; values do not count.
        tokens: What to measure; a batch is computed as the largest of these that is not above it.
        chunks: What to try: numbers of chunks, or shares.
        seconds: The time for each of `tokens`.
    """
    rule = pipeline.rule
    try:
        measured = {count: _fastest(pipeline, prepare(count), count, chunks, seconds) for count in sorted(tokens)}
    finally:
        pipeline.rule = rule
    pipeline.rule = measured
    return measured


def _fastest(pipeline: Pipeline, run: Run, tokens: int, chunks: Sequence[Chunks], seconds: float) -> Chunks:
    by_label: dict[str, Chunks] = {
        str(each): each for each in (1, *chunks) if each == 1 or pipeline.divides(tokens, each)
    }

    def always(each: Chunks) -> None:
        pipeline.rule = {0: each}

    enters = {label: partial(always, each) for label, each in by_label.items()}
    protocol = Protocol(blocks=BLOCKS, budget_s=seconds)
    calls = {label: [run] for label in by_label}
    whole, *others = measure_calls(pipeline.comm, calls, protocol, counted(tokens, "token"), enters)
    faster = [each for each in others if ratio_of_medians(whole.times_s, each.times_s).low > 1]
    return by_label[min(faster, key=lambda each: each.median_s, default=whole).label]
