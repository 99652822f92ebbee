"""From samples to a choice by size, by the rule of docs/tuning.md: what is slower by the margin does not run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from commlib.tools.tune.case import Option, Samples

MARGIN_S = 0.1e-6
SWITCH = 2.0  # halvings of the multiprocessors, at one size, that a change of option must save
STEEP = 200.0  # halvings that taking longer than allowed must save, by its logarithm: two for 1 %
STAYS, NOISE = math.log2(1.5), 0.02  # so many halvings, and so much of the time, what is in force may be worse
BySize = Callable[[int], Option | None]
Choice = dict[int, Option]  # by size


@dataclass(frozen=True)
class Settings:
    """How to choose. `fresh`: as if no plan were in force."""

    margin: float = 0.05
    spare: float = 0.03  # of the time, for fewer multiprocessors
    fresh: bool = False


def choose(samples: Samples, settings: Settings, now: BySize) -> Choice:
    """Choose an option for each size; `now` is what the plan in force runs."""
    before, costs = Choice(), []
    for size in samples.sizes:
        times, old = samples.medians(size), now(size)
        if old in times and not settings.fresh:
            before[size] = old
        good = [option for option in times if _is_good(option, samples.times[size], settings.margin)]
        stays: dict[Option | None, float] = {None: -NOISE} if before.get(size) in good else {}
        costs.append(stays | {option: math.log(times[option] / min(times.values())) for option in good})
    path = zip(samples.sizes, cheapest(costs, settings.margin), strict=True)
    choice = {size: option or before[size] for size, option in path}
    return _on_fewer_sms(samples, choice, before, settings.spare) if settings.spare and samples.sms else choice


def gain(samples: Samples, chosen: Option, sizes: Sequence[int]) -> tuple[float, str] | tuple[None, None]:
    """Return how much faster an option is than the best other algorithm, where that was measured, and its name."""
    rivals: dict[str, list[float]] = {}
    for times in map(samples.medians, sizes):
        for name in {option.algorithm for option in times} - {chosen.algorithm}:
            best_s = min(time_s for option, time_s in times.items() if option.algorithm == name)
            rivals.setdefault(name, []).append(math.log(best_s / times[chosen]))
    means = sorted((fmean(ratios), name) for name, ratios in rivals.items())
    return (round(math.expm1(means[0][0]), 4), means[0][1]) if means else (None, None)


def cheapest(costs: Sequence[Mapping[Any, float]], price: float) -> list[Any]:
    """Return the keys, one of each row, of the least sum of costs and of the price of each change."""
    total, back = dict(costs[0]), list[dict[Any, Any]]()
    for row in costs[1:]:
        best = min(total, key=total.__getitem__)
        came = {key: key if total.get(key, math.inf) <= total[best] + price else best for key in row}
        total = {key: cost + total[came[key]] + price * (came[key] != key) for key, cost in row.items()}
        back.append(came)
    path = [min(total, key=total.__getitem__)]
    for came in reversed(back):
        path.append(came[path[-1]])
    return path[::-1]


def ranges(path: Sequence[Any]) -> list[range]:
    """Return the numbers of neighbours that are equal."""
    starts = [at for at in range(len(path)) if at == 0 or path[at] != path[at - 1]]
    return [range(first, after) for first, after in zip(starts, [*starts[1:], len(path)], strict=True)]


def _on_fewer_sms(samples: Samples, choice: Choice, before: Choice, spare: float) -> Choice:
    """Return a choice with what takes little longer, on fewer multiprocessors, where these matter."""
    sizes, chosen = list(choice), dict(choice)
    for rows in ranges([(option, size in samples.sms) for size, option in choice.items()]):
        here, costs = [size for size in sizes[rows.start : rows.stop] if size in samples.sms], []
        for size in here:
            times, row = samples.medians(size), dict[Option, float]()
            allowed_s = max(min(times.values()) * (1 + spare), times[choice[size]])
            for option, time_s in times.items():
                old = option == before.get(size)
                over = math.log(time_s / allowed_s) - NOISE * old
                row[option] = math.log2(1 + samples.sms[size][option]) - STAYS * old + STEEP * max(over, 0.0)
            costs.append(row)
        chosen |= zip(here, cheapest(costs, SWITCH), strict=True) if here else {}
    return chosen


def _is_good(option: Option, times: Mapping[Option, Sequence[float]], margin: float) -> bool:
    """Whether one of the views does not show it slower by the margin, in the turns that it had with the others."""
    turns = len(times[option])
    rivals = [views(blocks[:turns]) for blocks in times.values() if len(blocks) >= turns]
    limits = [max(best_s * (1 + margin), best_s + MARGIN_S) for best_s in map(min, zip(*rivals, strict=True))]
    return any(time_s < limit_s for time_s, limit_s in zip(views(times[option]), limits, strict=True))


def views(blocks: Sequence[float]) -> tuple[float, float, float]:
    """Return the medians of both halves of the blocks, in turns, and the lower quartile."""
    return median(blocks[::2]), median(blocks[1::2] or blocks), sorted(blocks)[len(blocks) // 4]
