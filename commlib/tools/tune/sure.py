"""Sure: medians of what was measured and of blocks drawn again; what gains, and in how many of the latter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commlib.tools.tune.case import Option

Array = npt.NDArray[np.float64]
EARNED, EARNED_S = 0.05, 0.1e-6  # what a range saves over its neighbours, at one of its sizes at least: both
NOISE = 0.02  # how far two runs on one machine may differ in who is faster, and by how much
UNAVAILABLE = 1e6  # the cost of what was not measured at a size


@dataclass(frozen=True)
class Medians:
    """Log medians by size and option, infinity where one was not measured; `drawn` has a table for each draw."""

    options: Sequence[Option]
    found: Array
    drawn: Array

    @classmethod
    def of(
        cls, blocks: Sequence[Mapping[Option, Sequence[float]]], options: Sequence[Option], draws: int, seed: int
    ) -> Medians:
        """Draw blocks with replacement, those of one turn together, and what another run may differ in besides.

        Single blocks are drawn once, as they are.
        """
        found = np.full((len(blocks), len(options)), np.inf)
        single = all(len(times) == 1 for of_size in blocks for times in of_size.values())
        drawn = np.full((1 if single else draws, *found.shape), np.inf)
        generator = np.random.default_rng(seed)
        runs = generator.normal(0.0, 0.0 if single else NOISE / math.sqrt(2), drawn.shape)
        for at, of_size in enumerate(blocks):
            turns: dict[int, npt.NDArray[np.int64]] = {}
            for column, option in enumerate(options):
                if option in of_size:
                    times = np.asarray(of_size[option])
                    count = len(times)
                    found[at, column] = np.log(np.median(times))
                    if count not in turns:
                        turns[count] = generator.integers(0, count, (len(drawn), count))
                    drawn[:, at, column] = np.log(np.median(times[turns[count]], axis=1))
        return cls(options, found, drawn + runs)

    def of_draw(self, draw: int) -> Medians:
        """Return one draw as if it had been measured."""
        return Medians(self.options, self.drawn[draw], self.drawn[draw : draw + 1])

    def index(self, option: Option | None, size: int) -> int | None:
        """Return an option's column if it was measured at a size, which is given by its number."""
        at = self.options.index(option) if option in self.options else None
        return None if at is None or np.isinf(self.found[size, at]) else at

    def lost(self, rows: range, own: int, instead: Sequence[int]) -> Array:
        """Return by how much, in logs, others take longer at these sizes, as measured."""
        return np.asarray(self.found[rows, list(instead)] - self.found[rows, own])

    def earns(self, rows: range, own: int, instead: Sequence[int]) -> tuple[bool, float]:
        """Whether others take 5 % and 0.1 µs longer at one of these sizes, and longer over all: as measured; in draws.

        The size is the one at which most is saved as measured: some size of many would do so in any draw.
        """
        lost, of_own = self.lost(rows, own, instead), self.found[rows, own]
        most = int(_margin(lost, of_own).argmax())
        drawn = self.drawn[:, rows, list(instead)] - self.drawn[:, rows, own]
        at_most = drawn[:, most] - self._luck(range(rows[most], rows[most] + 1), instead[most])
        does = _margin(lost, of_own)[most] >= 1 and lost.sum() > 0
        surely = (_margin(at_most, self.drawn[:, rows[most], own]) >= 1) & (drawn.sum(axis=1) > 0)
        return bool(does), float(surely.mean())

    def outdoes(self, rows: range, own: int, old: int) -> tuple[bool, float]:
        """Whether one takes longer by what two runs may differ in, over these sizes: as measured; in draws."""
        mean = (self.found[rows, old] - self.found[rows, own]).mean()
        means = (self.drawn[:, rows, old] - self.drawn[:, rows, own]).mean(axis=1) - self._luck(rows, old)
        return bool(mean >= NOISE), float((means >= NOISE).mean())

    def _luck(self, rows: range, old: int) -> float:
        """Return how much more the best of a draw gains over one option in it than as measured.

        So much of what the best gains as measured is luck, too: of many that are as good, one had the best blocks.
        """
        drawn, found = self.drawn[:, rows].mean(axis=1), self.found[rows].mean(axis=0)
        best = drawn.argmin(axis=1)
        of_best = drawn[range(len(drawn)), best] - found[best]
        return float((drawn[:, old] - found[old] - of_best).mean()) if np.isfinite(found[old]) else 0.0


def _margin(lost: Array, own: Array) -> Array:
    """Return how many times over what is lost makes a range earn its place."""
    longer_s = np.exp(own) * np.expm1(np.minimum(lost, np.log(UNAVAILABLE)))
    return np.asarray(np.minimum(lost / math.log1p(EARNED), longer_s / EARNED_S))
