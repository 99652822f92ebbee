"""Judge: what a choice costs on blocks that did not make it, against the best, the default, the plan in force."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from commlib.tools.tune.case import Option
from commlib.tools.tune.choose import BySize, Settings, choose_without, in_fold, nothing
from commlib.tools.tune.samples import Samples
from commlib.tools.tune.sure import NOISE


@dataclass(frozen=True)
class Verdict:
    """Shares by which a choice is slower: 0.01 is one percent."""

    regret: float  # than the best at each size; geometric mean over sizes
    worst: float
    over_default: float | None  # how much faster than the default; geometric mean
    slower: dict[int, float] = field(default_factory=dict)  # sizes at which the default is faster, beyond noise
    noise: float = 0.0  # median over sizes of how far blocks scatter


def judge(
    samples: Samples,
    choice: Callable[[int], Option] | None,
    default: BySize,
    settings: Settings,
    now: BySize = nothing,
) -> Verdict:
    """Compare block by block with what the other folds say is best; without a `choice`, with what they choose, too.

    `now` is what the plan in force runs. No block judges what was chosen with its help: no luck is held for or against
    anyone.
    """
    folds = [choose_without(samples, fold, settings, now) for fold in range(settings.folds)]
    regrets, gains, slower, noise = [], [], {}, []
    for size in samples.sizes:
        times = samples.times[size]
        chosen = [choice(size) if choice else of_fold[size] for of_fold, _ in folds]
        own = _judged(times, [_measured(times, option) for option in chosen])
        best = _judged(times, [of_fold[size] for _, of_fold in folds])
        regrets.append(math.log(median(own) / median(best)))
        noise.append(_error(best))
        usual = default(size)
        if usual is not None and usual in times:
            gain = math.log(median(times[usual]) / median(own))
            gains.append(gain)
            spare = settings.spare if size in samples.sms else 0.0  # which was given for fewer multiprocessors
            if -gain > max(NOISE, spare, 3 * math.hypot(_error(own), _error(times[usual]))):
                slower[size] = round(math.expm1(-gain), 4)
    return Verdict(
        regret=round(math.expm1(_mean(regrets)), 5),
        worst=round(math.expm1(max(regrets, default=0.0)), 5),
        over_default=round(math.expm1(_mean(gains)), 4) if gains else None,
        slower=slower,
        noise=round(median(noise) if noise else 0.0, 4),
    )


def _measured(times: Mapping[Option, Sequence[float]], option: Option) -> Option:
    """Return the option, or the slowest where it was not measured: nothing speaks for it."""
    return option if option in times else max(times, key=lambda other: median(times[other]))


def _judged(times: Mapping[Option, Sequence[float]], options: Sequence[Option]) -> list[float]:
    """Return each fold's blocks of the option that this fold judges."""
    return [t for fold, option in enumerate(options) for t in in_fold(times[option], fold, len(options))]


def _error(times: Sequence[float]) -> float:
    """Return the standard error of the median of these blocks, as a share of it."""
    low, high = np.percentile(times, (25, 75))
    return float(0.93 * (high - low) / np.median(times) / math.sqrt(len(times)))  # IQR / 1.35 · √(π/2): normal scatter


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
