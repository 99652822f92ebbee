"""The alpha-beta model of a call: its time is what a message costs, and for each byte what a byte costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SIZES = 4  # two parameters through fewer points say little of the error


@dataclass(frozen=True)
class Fit:
    """Seconds of a call, seconds of a byte, and the relative error of the times they give."""

    latency_s: float
    byte_s: float
    error: float

    def time_s(self, num_bytes: float) -> float:
        """Return what the model says of a size."""
        return self.latency_s + self.byte_s * num_bytes


def fit_latency_and_rate(sizes: Sequence[int], times_s: Sequence[float]) -> Fit | None:
    """Return the line of the least relative error, None for fewer than four sizes.

    Relative, as the times span four decades: by absolute error the largest size alone would decide. Neither
    parameter is negative; where the best line has one, the other is fitted without it.
    """
    if len(set(sizes)) < LEAST_SIZES:
        return None
    u = [1 / t for t in times_s]
    v = [size / t for size, t in zip(sizes, times_s, strict=True)]
    # Normal equations of alpha u + beta v = 1: each time as a share of the one that was measured.
    uu, vv, uv = _dot(u, u), _dot(v, v), _dot(u, v)
    su, sv = sum(u), sum(v)
    determinant = uu * vv - uv * uv
    pairs = [((su * vv - sv * uv) / determinant, (sv * uu - su * uv) / determinant)]
    if min(pairs[0]) < 0:
        pairs = [(0.0, sv / vv), (su / uu, 0.0)]
    fits = [Fit(alpha, beta, _error(u, v, (alpha, beta))) for alpha, beta in pairs]
    return min(fits, key=lambda fit: fit.error)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _error(u: Sequence[float], v: Sequence[float], line: tuple[float, float]) -> float:
    alpha, beta = line
    return math.sqrt(sum((alpha * a + beta * b - 1) ** 2 for a, b in zip(u, v, strict=True)) / len(u))
