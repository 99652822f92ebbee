"""A pipeline over chunks of tokens: one chunk's communication runs beside the products of the others."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from commlib.communicator import Communicator
from commlib.counts import counted
from commlib.timing import Protocol, Run, measure_calls, ratio_of_medians
from commlib.tp.multiprocessors import leaving
from commlib.tp.sequence import gather, scatter
from commlib.work import Work

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""What is done for one chunk; it yields between the start of a communication and its wait."""

CHUNKS, LEAST_TURNS, MOST_TURNS = (2, 4, 8), 9, 49


class Pipeline:
    """How many chunks a number of tokens is computed in, and how their calls are made beside the products.

    Without a rule everything runs one after the other. `tune` measures one; a rule is a dict, which can be kept and
    passed the next time.
    """

    def __init__(
        self, comm: Communicator, rule: Mapping[int, int] | None = None, *, max_sms: int = 0, multiple: int = 128
    ) -> None:
        """Pipeline over `comm`.

        Args:
            comm: Makes the calls of chunks, asynchronously: that of the layers, or one of the same ranks.
            rule: {2048: 2, 8192: 4}: from so many tokens on, so many chunks; fewer tokens run one after the other.
            max_sms: The multiprocessors that such a call takes at most, and that products beside it leave to it; 0
                for no limit.
            multiple: The tokens of a chunk are a multiple of this, so that its products fill their tiles; the last
                chunk has the rest.
        """
        self.comm, self.max_sms, self.multiple = comm, max_sms, multiple
        self.rule = {int(tokens): count for tokens, count in (rule or {}).items()}  # keys that JSON kept are text
        wrong = {tokens: count for tokens, count in self.rule.items() if tokens < 0 or count < 1}
        if wrong or multiple < 1:
            raise ValueError(
                f"rule is {self.rule} and multiple is {multiple}, but tokens must be 0 or more, chunks and multiple 1 "
                "or more: {2048: 2} makes two chunks from 2048 tokens on"
            )

    def cuts(self, tokens: int, parts: int = 1) -> list[slice]:
        """Return the chunks of so many tokens; with `parts`, of each of so many equal parts of them."""
        below = [least for least in self.rule if least <= tokens]
        return self._cut(tokens, self.rule[max(below)] if below else 1, parts)

    def scatter_rows(self, x: Tensor, out: Tensor | None = None) -> Work:
        """Start to add up all ranks' rows; result() waits for those that this rank keeps."""
        work: Work = scatter(self.comm, x, out, async_op=True, max_sms=self.max_sms)
        return work

    def gather_rows(self, rows: Tensor, out: Tensor) -> Work:
        """Start to put every rank's rows into `out`."""
        work: Work = gather(self.comm, rows, out, async_op=True, max_sms=self.max_sms)
        return work

    def beside(self) -> AbstractContextManager[None]:
        """Have products leave the multiprocessors that the calls of chunks take; run() does this by itself."""
        if not self.max_sms or self.comm.device.type != "cuda":
            return leaving(0)
        there = torch.cuda.get_device_properties().multi_processor_count
        return leaving(self.max_sms if self.max_sms < there else 0)  # else calls may take all of them

    def run(self, programs: Iterable[Steps[Any]]) -> None:
        """Run one program for each chunk: each goes a step when the chunk after it has gone one.

        So a chunk waits for its communication behind what another one computes. All ranks take the same steps in the
        same order.
        """
        coming, running = iter(programs), list[Steps[Any]]()
        with self.beside():
            while (newest := next(coming, None)) is not None or running:
                running = [program for program in [newest, *running] if program is not None and _goes_on(program)]

    def tune(
        self, prepare: Callable[[int], Run], tokens: Sequence[int], chunks: Sequence[int] = CHUNKS, seconds: float = 2.0
    ) -> dict[int, int]:
        """Measure a rule, keep it, and return it; every rank must call this with the same arguments.

        A number of chunks is chosen where it is faster than one after the other by more than measuring varies.

        Args:
            prepare: Returns what computes so many tokens with this pipeline: Llama.between; values do not count.
            tokens: What to measure; a batch is computed as the largest of these that is not above it.
            chunks: The numbers of chunks to try.
            seconds: The time for each of `tokens`.
        """
        rule = self.rule
        try:
            found = {count: self._fastest(prepare(count), count, chunks, seconds) for count in sorted(tokens)}
        finally:
            self.rule = rule
        self.rule = found
        return found

    def _cut(self, tokens: int, count: int, parts: int = 1) -> list[slice]:
        rows, step = tokens // parts, max(1, self.multiple // parts)
        ends = [min(-(-rows * (at + 1) // (count * step)) * step, rows) for at in range(count)]
        found = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True) if end > start]
        return found or [slice(0, rows)]

    def _fastest(self, run: Run, tokens: int, chunks: Sequence[int], seconds: float) -> int:
        counts = [1, *sorted({count for count in chunks if len(self._cut(tokens, count)) == count > 1})]
        calls = {str(count): [run] for count in counts}
        enters = {str(count): partial(self._always, count) for count in counts}
        protocol = Protocol(blocks=(LEAST_TURNS, MOST_TURNS), budget_s=seconds)
        alone, *others = measure_calls(self.comm, calls, protocol, counted(tokens, "token"), enters)
        surely = [each for each in others if ratio_of_medians(alone.times_s, each.times_s).low > 1]
        return int(min(surely, key=lambda each: each.median_s, default=alone).label)

    def _always(self, count: int) -> None:
        self.rule = {0: count}


def _goes_on(program: Steps[Any]) -> bool:
    try:
        next(program)
    except StopIteration:
        return False
    return True
