"""OSU's columns: of a collective's latency, of messages in a window, of a call beside computing."""

from __future__ import annotations

from collections.abc import Iterator

from commlib.tools.bench.rows import PLACES, type_text
from commlib.tools.report.document import Row

COUNT, WIDTH = "Iterations", (18, 12)  # characters of a figure, and of that


def head(row: Row) -> list[str]:
    """Return the lines above one algorithm in one form."""
    op = row["op"].replace("_", "") if row["op"].startswith("all_") else row["op"]
    what, columns = _columns(row)
    return [
        f"# commlib {op.capitalize()} {what} Test",
        f"# Datatype: {type_text(row['type'])}.",
        f"# Algorithm: {', '.join(_words(row))}.",
        *(
            []
            if "window" in row
            else ["# Avg is the median of the blocks, Min and Max are the fastest and the slowest."]
        ),
        f"{'# Size':<10}" + "".join(f"{name:>{WIDTH[name == COUNT]}}" for name in columns),
    ]


def line(row: Row) -> str:
    """Return the line of a size."""
    figures = "".join(f"{value:>18.2f}" for value in _figures(row))
    last = "" if "window" in row or "overlap" in row else f"{row['iterations'] * row['blocks']:>12}"
    return f"{row['size']:<10}{figures}{last}"


def _columns(row: Row) -> tuple[str, list[str]]:
    if "window" in row:
        return "Bandwidth", ["MB/s", "Messages/s"]
    if "overlap" in row:
        return "Overlap", ["Overall(us)", "Compute(us)", "Pure Comm.(us)", "Overlap(%)"]
    return "Latency", ["Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", COUNT]


def _figures(row: Row) -> list[float]:
    if "window" in row:
        return [row["algbw"] * 1e3, row["messages_s"]]
    if "overlap" in row:
        beside = row["overlap"]
        return [beside["both_us"], beside["compute_us"], row["time_us"]["p50"], beside["share"] * 100]
    return [row["time_us"][name] for name in ("p50", "p0", "p100")]


def _words(row: Row) -> Iterator[str]:
    yield f"{row['algorithm']} on {row['placement']} tensors, {PLACES[row['in_place']]}"
    if row["redop"]:
        yield row["redop"]
    if row["root"] is not None:
        yield f"root {row['root']}"
    if row["mode"] == "graph":
        yield "CUDA graph"
    if "window" in row:
        yield f"window {row['window']}{', pairs' * row['pairs']}"
