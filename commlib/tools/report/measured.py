"""What rows say of blocks: percentiles of a call's time, and a ratio of two medians with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commlib.tools.timing import Measurement

MIN_BLOCKS = 3  # of fewer, no interval can be had
ENOUGH = 1.05  # times as fast: less is level


def percentiles_us(measured: Measurement, percents: Sequence[int] = (0, 10, 50, 90, 100)) -> dict[str, float]:
    return {f"p{p}": round(measured.percentile_s(p) * 1e6, 4) for p in percents}


def ratio_of(above_us: Mapping[str, float], below_us: Mapping[str, float]) -> dict[str, float]:
    """Return how many times as long `above` takes: of medians, and of the middle four fifths of blocks."""
    ends = {"ratio": ("p50", "p50"), "low": ("p10", "p90"), "high": ("p90", "p10")}
    return {name: round(above_us[above] / below_us[below], 4) for name, (above, below) in ends.items()}


def outcome(versus: Mapping[str, float] | None) -> str:
    """Say whether ours is faster, slower or level, by how many times as long the other takes and its interval."""
    if versus is None:
        return ""
    if versus["low"] > 1 and versus["ratio"] >= ENOUGH:
        return "faster"
    return "slower" if versus["high"] < 1 and versus["ratio"] <= 1 / ENOUGH else "level"
