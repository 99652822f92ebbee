"""From samples to a choice by size: a shortest path over the sizes, where a switch has its price.

median of blocks | cost over the best | path with a price per switch | ranges that surely earn their place |
what is in force stays unless something surely outdoes it | where neighbours cross | again, on blocks drawn anew
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from commlib.tools.tune.case import Option
from commlib.tools.tune.knee import knee
from commlib.tools.tune.path import cheapest, crossings, earned, ranges
from commlib.tools.tune.samples import Samples
from commlib.tools.tune.sure import NOISE, Array, Medians

ROUND_BYTES = 256  # crossovers beyond a few KiB: more digits say nothing
BySize = Callable[[int], Option | None]
OfSize = Mapping[Option, Sequence[float]]  # blocks
Again = tuple[list[Option], dict[int, float]]  # what one draw chooses, by number of size, and its crossovers


def nothing(num_bytes: int) -> None:
    """Say that no plan is in force."""


@dataclass(frozen=True)
class Settings:
    """How to choose. `penalty`: what a switch must gain, in natural logarithms, summed over the sizes behind it.

    `sure`: the share of draws that must say that a switch gains. `fresh`: what is in force may go all the same.
    """

    penalty: float = 0.02
    folds: int = 5  # each judges what the others choose
    resamples: int = 200
    seed: int = 0
    sure: float = 0.8
    fresh: bool = False
    spare: float = 0.03  # of the time, which is given for fewer multiprocessors


@dataclass(frozen=True)
class Stretch:
    """Neighbouring sizes where one option runs; `until` is the last size, None in the last stretch."""

    option: Option
    sizes: tuple[int, ...]
    until: int | None = None
    interval: tuple[int, int] | None = None
    confidence: float | None = None  # that the switch at its end gains; None where it stays as it was
    gain: float | None = None  # over the best other algorithm there, as a share, at the sizes that it was measured at
    runner_up: str | None = None


@dataclass(frozen=True)
class Change:
    """Neighbouring sizes where another option than before will run; no gain where that one was not measured."""

    sizes: tuple[int, ...]
    was: Option | None
    option: Option
    gain: float | None = None
    sure: float | None = None
    sms: tuple[int, int] | None = None  # multiprocessors before and after, at the largest size, where they matter


@dataclass(frozen=True)
class Choice:
    """What runs at which size, how sure that is, what that changes, and how many switches were not sure enough."""

    stretches: tuple[Stretch, ...]
    changes: tuple[Change, ...] = ()
    unsure: int = 0

    def at(self, num_bytes: int) -> Option:
        """Return what runs at a size."""
        for stretch in self.stretches:
            if stretch.until is None or num_bytes <= stretch.until:
                return stretch.option
        return self.stretches[-1].option


@dataclass
class _Picked:
    """By the number of a size: the option's column, and how sure its range is, None where it was in force before."""

    path: list[int]
    sure: list[float | None]
    unsure: int

    def put(self, rows: range, option: int, sure: float | None) -> None:
        """Let an option run at some sizes."""
        self.path[rows.start : rows.stop] = [option] * len(rows)
        self.sure[rows.start : rows.stop] = [sure] * len(rows)


def choose(samples: Samples, settings: Settings = Settings(), now: BySize = nothing) -> Choice:
    """Choose on all blocks; `now` is what the plan in force runs."""
    return _Chooser(samples, settings, now).choice()


def compared(choice: Choice, samples: Samples) -> Choice:
    """Return a choice among some of the options with its gains over all of them."""
    options, sizes = samples.options, samples.sizes
    found = Medians.of([samples.times[size] for size in sizes], options, 1, 0).found
    stretches = []
    for stretch in choice.stretches:
        rows = [sizes.index(size) for size in stretch.sizes]
        gain, runner_up = _gain(found[rows], options, options.index(stretch.option))
        stretches.append(replace(stretch, gain=gain, runner_up=runner_up))
    return replace(choice, stretches=tuple(stretches))


def choose_without(
    samples: Samples, fold: int, settings: Settings, now: BySize
) -> tuple[dict[int, Option], dict[int, Option]]:
    """Return, by size, what is chosen without the blocks of one fold, and who is best there without them."""
    options = samples.options
    rest = {
        size: {option: tuple(in_fold(times, fold, settings.folds, False)) for option, times in of_size.items()}
        for size, of_size in samples.times.items()
    }
    settings = replace(settings, resamples=settings.resamples // settings.folds)
    chooser = _Chooser(replace(samples, times=rest), settings, now)
    chosen = [options[state] for state in chooser.pick().path]
    best = [options[int(state)] for state in chooser.medians.found.argmin(axis=1)]
    return dict(zip(samples.sizes, chosen, strict=True)), dict(zip(samples.sizes, best, strict=True))


def in_fold(times: Sequence[float], fold: int, folds: int, inside: bool = True) -> Sequence[float]:
    """Return the blocks of a fold, or all others: they take turns, so that drift falls on all. Few are in every one."""
    few = len(times) < 2 * folds
    return [t for at, t in enumerate(times) if few or (at % folds == fold) == inside]


class _Chooser:
    """What was measured, by size, beside what the plan in force runs."""

    def __init__(self, samples: Samples, settings: Settings, now: BySize) -> None:
        blocks, options = samples.times, samples.options
        self.sizes, self.settings, self.now, self.sms = sorted(blocks), settings, now, samples.sms
        self.medians = Medians.of([blocks[size] for size in self.sizes], options, settings.resamples, settings.seed)
        self.before = [self.medians.index(now(size), at) for at, size in enumerate(self.sizes)]

    def pick(self) -> _Picked:
        """Return what runs by size: what is in force, unless something surely outdoes it."""
        medians, least = self.medians, self.settings.sure
        path, shares, unsure = earned(self._cheapest(medians), medians, least)
        picked = _Picked(path, [*shares], unsure)
        for rows, own, old in self._beside_before([*path]):
            if own == old:
                picked.put(rows, own, None)
            elif old is not None and not self.settings.fresh:
                does, sure = medians.outdoes(rows, own, old)
                if does and sure > least:
                    picked.put(rows, own, min(sure, shares[rows.start]))
                else:
                    picked.put(rows, old, None)
                    picked.unsure += does
        self._spare(picked)
        return picked

    def _spare(self, picked: _Picked) -> None:
        """Give sizes at which multiprocessors matter to what takes little longer on fewer of them."""
        medians, settings = self.medians, self.settings
        runs = [(option, self.sizes[at] in self.sms) for at, option in enumerate(picked.path)]
        for rows in ranges(runs):
            own, matters = runs[rows.start]
            if not (settings.spare and matters):
                continue
            sms = np.array([[self.sms[self.sizes[at]][o] for o in medians.options] for at in rows], dtype=float)
            before = [None if settings.fresh else self.before[at] for at in rows]
            path = knee(medians.found[rows], sms, own, before, settings.spare)
            for part in ranges(path):
                there = range(rows.start + part.start, rows.start + part.stop)
                option = path[part.start]
                if option != own:
                    longer = (medians.drawn[:, there, option] - medians.drawn[:, there, own]).mean(axis=1)
                    picked.put(there, option, float((longer <= settings.spare + NOISE).mean()))

    def _cheapest(self, medians: Medians) -> list[int]:
        """Return the cheapest path; what is in force has so much ahead as two runs may differ in."""
        costs = medians.found.copy()
        for row, old in zip(costs, self.before, strict=True):
            if old is not None and not self.settings.fresh:
                row[old] -= NOISE
        return cheapest(costs, self.settings.penalty)

    def choice(self) -> Choice:
        """Return the choice with all that there is to say of it."""
        picked = self.pick()
        resampled = list(self._resampled())
        stretches = []
        for rows in ranges(picked.path):
            own, here = picked.path[rows.start], tuple(self.sizes[at] for at in rows)
            gain, runner_up = _gain(self.medians.found[rows], self.medians.options, own)
            stretch = Stretch(self.medians.options[own], here, gain=gain, runner_up=runner_up)
            if rows.stop < len(self.sizes):
                until, interval, sure = self._end(picked, rows.stop - 1, resampled)
                stretch = replace(stretch, until=until, interval=interval, confidence=sure)
            stretches.append(stretch)
        return Choice(tuple(stretches), tuple(self._changes(picked.path)), picked.unsure)

    def _end(
        self, picked: _Picked, last: int, resampled: Sequence[Again]
    ) -> tuple[int, tuple[int, int] | None, float | None]:
        """Return where the switch after a size lies, the interval, and how sure it is; one in force stays put."""
        between = self.sizes[last], self.sizes[last + 1]
        sure = [share for share in picked.sure[last : last + 2] if share is not None]
        if not sure:
            return _bound(self.now, *between), None, None
        switch = self.medians.options[picked.path[last]], self.medians.options[picked.path[last + 1]]
        crossing = crossings(self.sizes, self.medians.found, picked.path)[last]
        found = [ends[at] for path, ends in resampled if (at := _place(path, switch, last)) is not None]
        low, high = np.percentile([*found, crossing], (2.5, 97.5))
        around = math.floor(low), math.ceil(high)
        until = _rounded(crossing, around, between)
        return (until, around, min(sure)) if resampled else (until, None, None)

    def _resampled(self) -> Iterator[Again]:
        """Choose again on each draw; medians alone give none."""
        settings, draws = self.settings, len(self.medians.drawn)
        for draw in range(draws if draws > 1 else 0):
            again = self.medians.of_draw(draw)
            path, _, _ = earned(self._cheapest(again), again, settings.sure)
            yield [again.options[state] for state in path], crossings(self.sizes, again.found, path)

    def _beside_before(self, path: Sequence[int]) -> Iterator[tuple[range, int, int | None]]:
        """Yield neighbouring sizes that one option runs, and one ran before."""
        pairs = list(zip(path, self.before, strict=True))
        yield from ((rows, *pairs[rows.start]) for rows in ranges(pairs))

    def _changes(self, path: Sequence[int]) -> Iterator[Change]:
        for rows, own, old in self._beside_before(path):
            if own == old:
                continue
            sizes = tuple(self.sizes[at] for at in rows)
            change = Change(sizes, self.now(sizes[0]), self.medians.options[own])
            if old is not None:
                gain = math.expm1(float(self.medians.lost(rows, own, [old] * len(rows)).mean()))
                change = replace(change, gain=gain, sure=self.medians.outdoes(rows, own, old)[1])
                if taken := self.sms.get(sizes[-1]):
                    options = self.medians.options
                    change = replace(change, sms=(taken[options[old]], taken[options[own]]))
            yield change


def _bound(now: BySize, low: int, high: int) -> int:
    """Return the last size at which the plan in force runs what it runs at `low`, and not what it runs at `high`."""
    option = now(low)
    return low + bisect(range(low + 1, high), 0, key=lambda size: now(size) != option)


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
    """Return how much faster the chosen one is than the best other algorithm, where that was measured, and its name."""
    best: tuple[float, str] | None = None
    for name in sorted({option.algorithm for option in options} - {options[state].algorithm}):
        columns = [at for at, option in enumerate(options) if option.algorithm == name]
        rival = medians[:, columns].min(axis=1)
        measured = np.isfinite(rival)  # those far behind are dropped on the way
        if measured.any():
            ratio = math.exp(float(np.mean((rival - medians[:, state])[measured])))
            best = min(best or (ratio, name), (ratio, name))
    return (round(best[0] - 1, 4), best[1]) if best else (None, None)
