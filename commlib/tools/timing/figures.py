"""What is made of measured times: the interval of a ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Ratio:
    """A ratio of medians and the interval that it lies in 95 times of 100."""

    ratio: float
    low: float
    high: float


def ratio_of_medians(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Ratio:
    """Return median(above) / median(below), with the interval that drawing the blocks anew gives.

    With as many blocks of one as of the other, those of one turn are drawn together: what disturbed both cancels out.
    """
    first, second = numpy.asarray(above, dtype=float), numpy.asarray(below, dtype=float)
    draw = numpy.random.default_rng(seed).integers
    drawn = draw(len(first), size=(RESAMPLES, len(first)))
    paired = drawn if len(first) == len(second) else draw(len(second), size=(RESAMPLES, len(second)))
    ratios = numpy.median(first[drawn], axis=1) / numpy.median(second[paired], axis=1)
    ratio = float(numpy.median(first) / numpy.median(second))
    low, high = (float(bound) for bound in numpy.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    return Ratio(ratio, min(low, ratio), max(high, ratio))  # of very few blocks the quantiles may miss the ratio itself
