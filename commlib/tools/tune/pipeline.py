"""Measure how many chunks a tp.Pipeline computes a number of tokens in."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial

from commlib.counts import counted
from commlib.tools.timing import Protocol, Run, measure_calls
from commlib.tools.tune.choose import views
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
    """Measure the rule of a pipeline, set it, and return it; every rank must call this with the same arguments.

    Several chunks are chosen where both halves of their blocks and the lower quartile are faster than those of one.
    `prepare` returns what computes so many tokens with this pipeline: Llama.between; values do not count. A batch is
    computed as the largest of `tokens` that is not above it. `chunks` are numbers of chunks, or shares; each of
    `tokens` takes `seconds`.
    """
    before, rule = pipeline.rule, dict[int, Chunks]()
    try:
        for count in sorted(tokens):
            by_label = {str(each): each for each in (1, *chunks) if each == 1 or pipeline.divides(count, each)}
            enters = {label: partial(setattr, pipeline, "rule", {0: each}) for label, each in by_label.items()}
            run = prepare(count)
            calls = {label: [run] for label in by_label}
            protocol, name = Protocol(blocks=BLOCKS, budget_s=seconds), counted(count, "token")
            whole, *others = measure_calls(pipeline.comm, calls, protocol, name, enters)
            at_once = views(whole.times_s)
            faster = [each for each in others if all(map(operator.lt, views(each.times_s), at_once))]
            rule[count] = by_label[min(faster, key=lambda each: each.median_s, default=whole).label]
        before = rule
    finally:
        pipeline.rule = before
    return rule
