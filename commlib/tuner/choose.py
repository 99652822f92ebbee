"""From samples to a choice by size: a shortest path over the sizes, where a switch has its price.

median of blocks | cost over the best | path with a price per switch | ranges that earn their place |
where neighbours cross | again, resampled
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from commlib.tuner.case import Option
from commlib.tuner.samples import Samples

Array = npt.NDArray[np.float64]
ROUND_BYTES = 256  # crossovers beyond a few KiB: more digits say nothing
EARNED, EARNED_S = 0.05, 0.1e-6  # what a range saves over its neighbours, at one of its sizes at least: both
UNAVAILABLE = 1e6  # the cost of what was not measured at a size


@dataclass(frozen=True)
class Settings:
    """How to choose. `penalty`: what a switch must gain, in natural logarithms, summed over the sizes behind it."""

    penalty: float = 0.02
    folds: int = 5  # each judges what the others choose
    resamples: int = 200
    seed: int = 0


@dataclass(frozen=True)
class Stretch:
    """Neighbouring sizes where one option runs; `until` is the last size, None in the last stretch."""

    option: Option
    sizes: tuple[int, ...]
    until: int | None = None
    interval: tuple[int, int] | None = None
    confidence: float | None = None
    gain: float | None = None  # over the best other algorithm there, as a share
    runner_up: str | None = None


@dataclass(frozen=True)
class Choice:
    """What runs at which size, and how sure that is."""

    stretches: tuple[Stretch, ...]

    def at(self, num_bytes: int) -> Option:
        """Return what runs at a size."""
        for stretch in self.stretches:
            if stretch.until is None or num_bytes <= stretch.until:
                return stretch.option
        return self.stretches[-1].option


def choose(samples: Samples, settings: Settings = Settings()) -> Choice:
    """Choose on all blocks."""
    sizes, options = samples.sizes, samples.options
    blocks = [samples.times[size] for size in sizes]
    medians = _medians(blocks, options)
    path = earned(_path(medians, settings.penalty), medians)
    ends = _crossings(sizes, medians, path)
    drawn = _resampled(blocks, options, settings)
    resampled = [(again, _crossings(sizes, table, again)) for table, again in drawn]
    stretches = []
    for first, after in _ranges(path):
        state, last = path[first], after - 1
        until, interval, confidence = None, None, None
        if after < len(sizes):
            switch = options[state], options[path[after]]
            places = [(_place([options[s] for s in again], switch, last), e) for again, e in resampled]
            found = [e[at] for at, e in places if at is not None]
            low, high = np.percentile([*found, ends[last]], (2.5, 97.5))
            around = math.floor(low), math.ceil(high)
            until = _rounded(ends[last], around, (sizes[last], sizes[after]))
            if resampled:
                interval, confidence = around, len(found) / len(resampled)
        gain, runner_up = _gain(medians[first:after], options, state)
        here = tuple(sizes[first:after])
        stretches.append(Stretch(options[state], here, until, interval, confidence, gain, runner_up))
    return Choice(tuple(stretches))


def choose_without(samples: Samples, fold: int, settings: Settings) -> tuple[dict[int, Option], dict[int, Option]]:
    """Return, by size, what is chosen without the blocks of one fold, and who is best there without them."""
    options = samples.options
    rest = [
        {option: in_fold(times, fold, settings.folds, False) for option, times in samples.times[size].items()}
        for size in samples.sizes
    ]
    medians = _medians(rest, options)
    chosen = [options[state] for state in earned(_path(medians, settings.penalty), medians)]
    best = [options[int(state)] for state in medians.argmin(axis=1)]
    return dict(zip(samples.sizes, chosen, strict=True)), dict(zip(samples.sizes, best, strict=True))


def in_fold(times: Sequence[float], fold: int, folds: int, inside: bool = True) -> Sequence[float]:
    """Return the blocks of a fold, or all others: they take turns, so that drift falls on all. Few are in every one."""
    few = len(times) < 2 * folds
    return [t for at, t in enumerate(times) if few or (at % folds == fold) == inside]


def _medians(blocks: Sequence[Mapping[Option, Sequence[float]]], options: Sequence[Option]) -> Array:
    """Return log medians by size and option; infinity where an option was not measured."""
    table = np.full((len(blocks), len(options)), np.inf)
    for row, of_size in zip(table, blocks, strict=True):
        for at, option in enumerate(options):
            if option in of_size:
                row[at] = math.log(float(np.median(of_size[option])))
    return table


def _path(medians: Array, penalty: float) -> list[int]:
    """Return the cheapest option by size: what it loses to the best, plus the price of each switch."""
    costs = np.minimum(medians - medians.min(axis=1, keepdims=True), UNAVAILABLE)
    total, back = costs[0].copy(), []
    for row in costs[1:]:
        cheapest = int(total.argmin())
        switch = total[cheapest] + penalty < total
        back.append(np.where(switch, cheapest, np.arange(len(total))))
        total = row + np.where(switch, total[cheapest] + penalty, total)
    path = [int(total.argmin())]
    for came_from in reversed(back):
        path.append(int(came_from[path[-1]]))
    return path[::-1]


def earned(path: Sequence[int], medians: Array) -> list[int]:
    """Give the sizes of ranges that do not earn their place to their neighbours, the one that saves least first.

    A range earns it where, at one of its sizes, its neighbours take 5 % longer and 0.1 µs longer.
    """
    path = list(path)
    while True:
        ranges = _ranges(path)
        idle = []
        for at, (first, last) in enumerate(ranges):
            left = path[first - 1] if at else None
            right = path[last] if last < len(path) else None
            if left is None and right is None:
                return path
            taken = _replaced(medians[first:last], left, right)
            own = medians[first:last, path[first]]
            lost = medians[range(first, last), taken] - own
            longer_s = np.exp(own) * np.expm1(np.minimum(lost, np.log(UNAVAILABLE)))
            if not ((lost >= math.log1p(EARNED)) & (longer_s >= EARNED_S)).any():
                idle.append((float(lost.sum()), first, taken))
        if not idle:
            return path
        _, first, taken = min(idle)
        path[first : first + len(taken)] = taken


def _ranges(path: Sequence[int]) -> list[tuple[int, int]]:
    """Return [first, after) of each stretch of one option."""
    starts = [at for at in range(len(path)) if at == 0 or path[at] != path[at - 1]]
    return list(zip(starts, [*starts[1:], len(path)], strict=True))


def _replaced(medians: Array, left: int | None, right: int | None) -> list[int]:
    """Return the cheapest way to deal these sizes out to the neighbours: the left one's first, then the right one's."""
    size = len(medians)
    if left is None or right is None:
        return [only for only in (left, right) if only is not None] * size
    ways = [[left] * cut + [right] * (size - cut) for cut in range(size + 1)]
    return min(ways, key=lambda way: float(medians[range(size), way].sum()))


def _crossings(sizes: Sequence[int], medians: Array, path: Sequence[int]) -> dict[int, float]:
    """Return, by the index of the size before a switch, the bytes where the two neighbours cost the same."""
    found = {}
    for at, (own, after) in enumerate(pairwise(path)):
        if own == after:
            continue
        before_log, behind_log = (float(medians[i, own] - medians[i, after]) for i in (at, at + 1))
        share = 0.5
        if np.isfinite(before_log) and np.isfinite(behind_log) and before_log < 0 < behind_log:
            share = -before_log / (behind_log - before_log)
        found[at] = 2 ** (math.log2(sizes[at]) * (1 - share) + math.log2(sizes[at + 1]) * share)
    return found


def _resampled(
    blocks: Sequence[Mapping[Option, Sequence[float]]], options: Sequence[Option], settings: Settings
) -> list[tuple[Array, list[int]]]:
    """Choose again on blocks drawn with replacement; blocks of one turn are drawn together. Medians alone give none."""
    if all(len(times) == 1 for of_size in blocks for times in of_size.values()):
        return []
    generator = np.random.default_rng(settings.seed)
    tables = np.full((settings.resamples, len(blocks), len(options)), np.inf)
    for at, of_size in enumerate(blocks):
        drawn: dict[int, npt.NDArray[np.int64]] = {}
        for column, option in enumerate(options):
            if option in of_size:
                times = np.asarray(of_size[option])
                if len(times) not in drawn:
                    drawn[len(times)] = generator.integers(0, len(times), (settings.resamples, len(times)))
                tables[:, at, column] = np.log(np.median(times[drawn[len(times)]], axis=1))
    return [(table, earned(_path(table, settings.penalty), table)) for table in tables]


def _place(path: Sequence[Option], switch: tuple[Option, Option], near: int) -> int | None:
    """Return where a path makes this very switch, nearest to a size; None if it does not.

    From one algorithm to another the parameters do not count: they are often as good as each other.
    """

    def key(own: Option, after: Option) -> tuple[object, object]:
        return (own, after) if own.algorithm == after.algorithm else (own.algorithm, after.algorithm)

    places = [at for at, pair in enumerate(pairwise(path)) if pair[0] != pair[1] and key(*pair) == key(*switch)]
    return min(places, key=lambda at: abs(at - near), default=None)


def _rounded(crossing: float, interval: tuple[int, int], between: tuple[int, int]) -> int:
    """Return a power of two if one is as good as the crossing, else a whole number of cache lines."""
    power = 1 << round(math.log2(crossing))
    low, high = max(interval[0], between[0]), min(interval[1], between[1] - 1)
    if low <= power <= high:
        return power
    step = ROUND_BYTES if crossing >= 8 * ROUND_BYTES else 8
    return min(max(round(crossing / step) * step, between[0]), between[1] - 1)


def _gain(medians: Array, options: Sequence[Option], state: int) -> tuple[float | None, str | None]:
    """Return how much faster the chosen one is than the best other algorithm over these sizes, and its name."""
    best: tuple[float, str] | None = None
    for name in sorted({option.algorithm for option in options} - {options[state].algorithm}):
        columns = [at for at, option in enumerate(options) if option.algorithm == name]
        rival = medians[:, columns].min(axis=1)
        if np.isfinite(rival).all():
            ratio = math.exp(float(np.mean(rival - medians[:, state])))
            best = min(best or (ratio, name), (ratio, name))
    return (round(best[0] - 1, 4), best[1]) if best else (None, None)
