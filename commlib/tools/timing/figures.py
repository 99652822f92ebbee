"""What is made of measured times: the interval of a ratio, and the alpha-beta model of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

RESAMPLES = 1000
LEVEL = 0.95
MIN_SIZES = 4  # two parameters through fewer points say little of the error


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


@dataclass(frozen=True)
class Fit:
    """Seconds of a call, seconds of a byte, and the relative error of the times they give."""

    latency_s: float
    byte_s: float
    error: float


def fit_latency_and_rate(sizes: Sequence[int], times_s: Sequence[float]) -> Fit | None:
    """Return the line latency + size / rate of the least relative error, None for fewer than four sizes.

    Relative, as the times span four decades: by absolute error the largest size alone would decide. Neither
    parameter is negative; where the best line has one, the other is fitted without it.
    """
    if len(set(sizes)) < MIN_SIZES:
        return None
    # Both parts of each time as shares of it: they add up to 1 where the line is right.
    shares = numpy.array([[1 / t, size / t] for size, t in zip(sizes, times_s, strict=True)])
    both = numpy.linalg.lstsq(shares, numpy.ones(len(shares)), rcond=None)[0]
    single = shares.sum(axis=0) / (shares**2).sum(axis=0)
    lines = [both] if both.min() >= 0 else [single * (1, 0), single * (0, 1)]
    errors = [float(numpy.sqrt(numpy.mean((shares @ line - 1) ** 2))) for line in lines]
    fits = [Fit(float(line[0]), float(line[1]), error) for line, error in zip(lines, errors, strict=True)]
    return min(fits, key=lambda fit: fit.error)
