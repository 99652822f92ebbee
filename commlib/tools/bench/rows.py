"""What all renderings of `commlib bench` share: its kind of document, the rows by call and form, and their words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from commlib.tools.baselines import PROBE
from commlib.tools.report.document import Kind, Row
from commlib.tools.report.view import grouped

KIND = Kind("commlib.bench", 1, "commlib bench", "commlib.tools.bench")

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
AGREE = 0.3  # blocks that differ by more say nothing to compare with; see spread()
FASTER = 1.1  # another is named where it wins by this much: less is noise
PLACES = {False: "out of place", True: "in place"}


def series_of(row: Row) -> tuple[Any, ...]:
    """Return what sizes are measured of: operation, type, reduction and mode."""
    return row["op"], row["type"], row["redop"], row["mode"]


def only(documents: Sequence[dict[str, Any]], ops: Sequence[str]) -> list[dict[str, Any]]:
    """Return the documents that have rows of these operations, with those and their fits; all without any."""
    known = list(dict.fromkeys(row["op"] for document in documents for row in document["rows"]))
    if unknown := [op for op in ops if op not in known]:
        raise ValueError(f"there are no rows of {', '.join(unknown)}, but of {', '.join(known)}")
    if not ops:
        return list(documents)
    parts = ({part: [row for row in of[part] if row["op"] in ops] for part in ("rows", "fits")} for of in documents)
    return [{**of, **part} for of, part in zip(documents, parts, strict=True) if part["rows"]]


def measured(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that have a time."""
    return [row for row in rows if "skipped" not in row]


def rivals(rows: Iterable[Row]) -> list[Row]:
    """Return other libraries' rows that have a time, without probes."""
    return [row for row in measured(rows) if not row["ours"] and not row["algorithm"].startswith(PROBE)]


def library(row: Row) -> str:
    """Name the library of a rival's row; older documents have the row's own name alone."""
    return str(row.get("library") or row["algorithm"])


def chosen(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of the plan's choice on plain tensors, in place and out of place."""
    return [row for row in measured(rows) if row["chosen"] and row["placement"] == "plain"]


def compared(call: Sequence[Row]) -> tuple[Row | None, Row | None]:
    """Return the plan's row and the other libraries' with right values, each the fastest of its forms."""
    ours = min(filter(median_us, chosen(call)), key=median_us, default=None)
    right = [row for row in rivals(call) if not row["wrong"]] if ours else []
    return ours, min(right, key=median_us, default=None)


def spread(time_us: Mapping[str, float]) -> float:
    """Return how far blocks differ: the middle four fifths of them, as a share of the median."""
    return (time_us["p90"] - time_us["p10"]) / time_us["p50"] if time_us["p50"] else 0.0


def steady(row: Row) -> bool:
    """Say whether a row's blocks agree enough for others to be compared with it."""
    return spread(row["time_us"]) <= AGREE


def versus(ours: Row, other: Row) -> dict[str, float]:
    """Return how many times as long the other takes: of medians, and of the middle four fifths of blocks."""
    a, b = other["time_us"], ours["time_us"]
    return {"ratio": a["p50"] / b["p50"], "low": a["p10"] / b["p90"], "high": a["p90"] / b["p10"]}


def averages(rows: Sequence[Row]) -> dict[str, Any]:
    """Average bus bandwidth of one collective as nccl-tests does: of the plan's choices on plain tensors, of peers."""
    moving = [row for row in measured(rows) if row["size"]]
    ours = [row["busbw"] for row in moving if row["chosen"] and row["placement"] == "plain"]
    theirs = grouped(rivals(moving), lambda row: row["algorithm"])
    one = len({row["op"] for row in moving}) == 1
    return {
        "plan": round(mean(ours), 6) if ours and one else None,
        "peers": {of[0]["algorithm"]: round(mean(row["busbw"] for row in of), 6) for of in theirs if one},
    }


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


def wrong_text(wrong: int | None) -> str:
    """Write the number of wrong elements, or N/A where values were not compared."""
    return "N/A" if wrong is None else str(wrong) if wrong < 1e6 else f"{wrong:.0e}"
