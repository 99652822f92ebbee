"""What all renderings of `commlib bench` share: the rows by series and call, and how sizes and figures are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Row = dict[str, Any]  # a row of the document: schema.json says what is in it

# nccl-tests' names of types; the others are torch's, cut to the column.
TYPES = {
    "float32": "float",
    "float16": "half",
    "float64": "double",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "complex64": "complex",
    "complex128": "dcomplex",
}
TYPE_WIDTH = 8
PLACES = {False: "out of place", True: "in place"}


def by_series(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield the rows of each operation, type, reduction and mode."""
    yield from _grouped(rows, "op", "type", "redop", "mode")


def by_call(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield the rows of each size of a series."""
    yield from _grouped(rows, "size")


def by_way(rows: Iterable[Row]) -> Iterator[dict[bool, Row]]:
    """Yield each way to make a call: its row out of place (False) and in place (True)."""
    for group in _grouped(rows, "algorithm", "placement"):
        yield {row["in_place"]: row for row in group}


def _grouped(rows: Iterable[Row], *keys: str) -> Iterator[list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    yield from groups.values()


def measured(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that have a time."""
    return [row for row in rows if "skipped" not in row]


def median_us(row: Row) -> float:
    """Return the figure of a row: the median over its blocks."""
    return float(row["time_us"]["p50"])


def title(row: Row) -> str:
    """Name the series of a row: all_reduce, float, sum."""
    parts = [row["op"], *([type_text(row["type"])] if row["size"] else [])]  # a barrier has no elements
    parts += [row["redop"]] if row["redop"] else []
    parts += [f"root {row['root']}"] if row["root"] is not None else []
    return ", ".join(parts + (["CUDA graph"] if row["mode"] == "graph" else []))


def label(row: Row) -> str:
    """Name the algorithm of a row, starred where the plan picks it."""
    return str(row["algorithm"]) + ("*" if row["chosen"] else "")


def type_text(name: str) -> str:
    """Write an element type as nccl-tests does."""
    return TYPES.get(name, name)[:TYPE_WIDTH]


def size_text(num_bytes: float) -> str:
    """Write a size as the options take it: 4096 is 4K; what is no whole number of units is written in bytes."""
    for unit, scale in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if num_bytes >= scale and num_bytes % scale == 0:
            return f"{int(num_bytes) // scale}{unit}"
    return f"{num_bytes:.0f}"


def about(num_bytes: float) -> str:
    """Write a size that was computed: to three digits."""
    for unit, scale in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.3g}{unit}"
    return f"{num_bytes:.0f}"


def sizes_text(low: int, high: int) -> str:
    """Write a range of sizes, or the size that it is."""
    return size_text(low) if low == high else f"{size_text(low)}–{size_text(high)}"


def fitted(value: float, width: int) -> str:
    """Write a figure with about four digits, as the rest is noise, and fewer where they do not fit."""
    for below, decimals in ((100, 2), (10_000, 1), (float("inf"), 0)):
        text = f"{value:.{decimals}f}"
        if value < below and len(text) <= width:
            return text
    return f"{value:.2e}".replace("e+0", "e").replace("e+", "e")


def ratio_text(value: float) -> str:
    """Write a ratio with about three digits."""
    return f"{value:.{ratio_decimals(value)}f}" if value < 9999.5 else f"{value / 1000:.0f}k"


def ratio_decimals(value: float) -> int:
    """Return how many decimals of a ratio are worth writing."""
    return 2 if value < 9.995 else 1 if value < 99.95 else 0


def wrong_text(row: Row) -> str:
    """Write the number of wrong elements, or N/A where values were not compared."""
    wrong = row["wrong"]
    return "N/A" if wrong is None else str(wrong) if wrong < 1e6 else f"{wrong:.0e}"


def percent_text(fraction: float | None) -> str:
    """Write a share in percent, without the sign."""
    return "-" if fraction is None else f"{fraction * 100:.1f}" if fraction < 0.0995 else f"{fraction * 100:.0f}"
