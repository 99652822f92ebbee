"""Knee: no more multiprocessors than the last few percent of time need; and what others take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, median

import numpy as np

from commlib.plan import Point
from commlib.tools.tune.case import PLAIN, Case, Option
from commlib.tools.tune.path import cheapest
from commlib.tools.tune.samples import Samples
from commlib.tools.tune.sure import NOISE, UNAVAILABLE, Array

SWITCH = 2.0  # halvings of the multiprocessors, at one size, that a change of option must save
STEEP = 200.0  # halvings that taking longer than allowed must save, by its logarithm: two for 1 %
CLOSER = 0.005  # of the time, that a point of a curve saves over those on fewer multiprocessors
STAYS = math.log2(1.5)  # what is in force may have half as many again, and be off by what two runs may differ in


def knee(found: Array, sms: Array, own: int, before: list[int | None], spare: float) -> list[int]:
    """Return what runs at neighbouring sizes where `own` was chosen by its time: what takes little longer, on fewer.

    `found` has log medians by size and option, `sms` the multiprocessors of each there; `before` is what is in force.
    """
    longest = np.maximum(found.min(axis=1) + math.log1p(spare), found[:, own])[:, None]
    over = found - longest
    costs = np.log2(1 + sms)
    for row, old in enumerate(before):
        if old is not None:
            over[row, old] -= NOISE
            costs[row, old] -= STAYS
    costs = np.where(np.isfinite(found), costs + STEEP * np.maximum(over, 0.0), UNAVAILABLE)
    return cheapest(costs, SWITCH)


def curve(case: Case, samples: Samples, own: Option, sizes: tuple[int, ...]) -> tuple[Point, ...]:
    """Return what was best at these sizes on fewer multiprocessors than an option takes, and on more."""
    where = [size for size in sizes if size in samples.sms and own in samples.times[size]]
    if not where:
        return ()
    found = sorted(_points(case, samples, own, where), key=lambda point: (point.sms, point.slower))
    most = min(samples.sms[size][own] for size in where) if own == PLAIN else _most_sms(case, own)
    fewer: list[Point] = []
    for point in found:
        if point.sms < most and point.slower < (fewer[-1].slower - CLOSER if fewer else math.inf):
            fewer.append(point)
    more = [point for point in found if point.sms > most]
    return (*fewer, *sorted(more, key=lambda point: point.slower)[:1])


def _points(case: Case, samples: Samples, own: Option, sizes: list[int]) -> Iterator[Point]:
    for option in samples.options:
        where = [size for size in sizes if option in samples.times[size]]
        if option in (own, PLAIN) or not where:
            continue
        ratios = [math.log(median(samples.times[size][option]) / median(samples.times[size][own])) for size in where]
        slower = round(math.expm1(fmean(ratios)), 4)
        sms = _most_sms(case, option)
        yield Point(sms=sms, algorithm=option.algorithm, params=dict(option.params), slower=slower)


def _most_sms(case: Case, option: Option) -> int:
    return case.collective.algorithm(option.algorithm).max_sms_of(case.launch(option))
