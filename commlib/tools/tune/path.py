"""Path: the cheapest options over the sizes, where a switch has its price and a range surely earns its place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from commlib.tools.tune.sure import UNAVAILABLE, Array, Medians


def cheapest(medians: Array, penalty: float) -> list[int]:
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


def earned(path: Sequence[int], medians: Medians, sure: float) -> tuple[list[int], list[float], int]:
    """Give the sizes of ranges that do not surely earn their place to their neighbours, the one that saves least first.

    Return the path, by size how sure its range is, and how many ranges earn their place as measured, but not surely.
    """
    path, unsure = list(path), 0
    while True:
        shares, idle = [], []
        for rows in ranges(path):
            instead = _neighbours(path, rows, medians.found)
            does, share = medians.earns(rows, path[rows.start], instead) if instead else (True, 1.0)
            shares += [share] * len(rows)
            if not does or share <= sure:
                saved = float(medians.lost(rows, path[rows.start], instead).sum())
                idle.append((saved, rows.start, instead, does))
        if not idle:
            return path, shares, unsure
        _, first, instead, does = min(idle)
        path[first : first + len(instead)] = instead
        unsure += does


def ranges(path: Sequence[Any]) -> list[range]:
    """Return the numbers of neighbouring sizes at which the same stands."""
    starts = [at for at in range(len(path)) if at == 0 or path[at] != path[at - 1]]
    return [range(first, after) for first, after in zip(starts, [*starts[1:], len(path)], strict=True)]


def _neighbours(path: Sequence[int], rows: range, medians: Array) -> list[int]:
    """Return the cheapest way to deal sizes out to the neighbours: the left one's first, then the right one's.

    Nothing where there is no neighbour.
    """
    left, right = path[: rows.start][-1:], path[rows.stop :][:1]
    if not (left and right):
        return [*left, *right] * len(rows)
    ways = [[*left] * cut + [*right] * (len(rows) - cut) for cut in range(len(rows) + 1)]
    return min(ways, key=lambda way: float(medians[rows, way].sum()))


def crossings(sizes: Sequence[int], medians: Array, path: Sequence[int]) -> dict[int, float]:
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
