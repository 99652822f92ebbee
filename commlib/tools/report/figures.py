"""Figures of blocks: percentiles, ratios with their intervals; and how sizes, times, ratios and shares are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commlib.tools.timing import Measurement

MIN_BLOCKS = 3  # of fewer, no interval can be had
_BINARY = (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10))


def size_text(num_bytes: float) -> str:
    """Write a size as the options take it: 4096 is 4K; what is no whole number of units is written in bytes."""
    for unit, scale in _BINARY:
        if num_bytes >= scale and num_bytes % scale == 0:
            return f"{int(num_bytes) // scale}{unit}"
    return f"{num_bytes:.0f}"


def about(num_bytes: float) -> str:
    """Write a size that was computed: to three digits."""
    for unit, scale in _BINARY:
        if num_bytes >= scale:
            count = num_bytes / scale
            return f"{count:.0f}{unit}" if count > 999 else f"{count:.3g}{unit}"
    return f"{num_bytes:.0f}"


def fitted(value: float | None, width: int) -> str:
    """Write a figure with about four digits, as the rest is noise, and fewer where they do not fit."""
    if value is None:
        return "-"
    for below, decimals in ((100, 2), (10_000, 1), (float("inf"), 0)):
        text = f"{value:.{decimals}f}"
        if value < below and len(text) <= width:
            return text
    return f"{value:.2e}".replace("e+0", "e").replace("e+", "e")


def percent_text(fraction: float | None) -> str:
    """Write a share in percent, without the sign."""
    return "-" if fraction is None else f"{fraction * 100:.1f}" if fraction < 0.0995 else f"{fraction * 100:.0f}"


def ratio_text(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}" if value < 9999.5 else f"{value / 1000:.0f}k"


def interval_text(ratio: dict[str, Any] | None) -> str:
    """Write a ratio and its interval: 2.31 [2.20–2.41]."""
    if ratio is None:
        return "-"
    return f"{ratio_text(ratio['ratio'])} [{ratio_text(ratio['low'])}–{ratio_text(ratio['high'])}]"


def percentiles_us(measured: Measurement, percents: Sequence[int] = (0, 10, 50, 90, 100)) -> dict[str, float]:
    return {f"p{p}": round(measured.percentile_s(p) * 1e6, 4) for p in percents}


def ratio_of(above_us: Mapping[str, float], below_us: Mapping[str, float]) -> dict[str, float]:
    """Return how many times as long `above` takes: of medians, and of the middle four fifths of blocks."""
    ends = {"ratio": ("p50", "p50"), "low": ("p10", "p90"), "high": ("p90", "p10")}
    return {name: round(above_us[above] / below_us[below], 4) for name, (above, below) in ends.items()}
