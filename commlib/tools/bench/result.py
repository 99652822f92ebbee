"""The result of `commlib bench`: its dataclasses, which give the JSON schema too, and what is read off its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from commlib.tools.baselines import PROBE
from commlib.tools.report.document import Document, Kind
from commlib.tools.report.document import Row as Json
from commlib.tools.report.formats import MIN_BLOCKS, ratio_of
from commlib.tools.report.view import grouped, unfinished

AGREE = 0.3  # blocks that differ by more say nothing to compare with; see spread()
FASTER = 1.1  # another is named where it wins by this much: less is noise
PLACES = {False: "out of place", True: "in place"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to make one call."""

    op: str
    size: int  # bytes, as nccl-tests counts them
    count: int  # elements, as nccl-tests counts them
    type: str  # torch's name
    redop: str | None
    root: int | None
    algorithm: str
    ours: bool
    placement: Literal["plain", "symmetric"]
    in_place: bool
    mode: Literal["eager", "graph"]
    chosen: bool  # by the plan
    rule: str | None  # of the plan
    why: str | None
    library: str | None = None  # whose algorithm it is, where it is not ours


@dataclass(frozen=True, kw_only=True)
class Skipped(Row):
    """One that was not measured."""

    skipped: str  # why


@dataclass(frozen=True, kw_only=True)
class Measured(Row):
    """One that was measured."""

    time_us: dict[str, float]  # p0, p10, p50, p90, p100 over the blocks of a call's time on the slowest rank, in µs
    iterations: int  # of a block
    blocks: int
    algbw: float  # GB/s: size / time
    busbw: float  # GB/s: algbw times the bus factor
    wrong: int | None  # elements; null: not compared
    host_us: float | None = None  # on GPUs: until the host has made an eager call


@dataclass(frozen=True)
class Result(Document):
    """All of a run."""

    config: dict[str, Any]  # what was asked for: ranks, backend, mode, sizes in bytes, types, peers, seconds, blocks …
    plan: dict[str, Any]  # digest; source: a name, no path; match: how far it is of this machine
    rows: Sequence[Skipped | Measured]
    notes: Sequence[str]
    out_of_bounds: dict[str, Any]  # count: wrong elements of all rows; okay: there are none


KIND = Kind("commlib.bench", 1, "commlib bench", of=Result)


# --- rows, as JSON has them


def series_of(row: Json) -> tuple[Any, ...]:
    return row["op"], row["type"], row["redop"], row["mode"]


def measured(rows: Iterable[Json]) -> list[Json]:
    return [row for row in rows if "skipped" not in row]


def rivals(rows: Iterable[Json]) -> list[Json]:
    """Return other libraries' rows that have a time, without probes."""
    return [row for row in measured(rows) if not row["ours"] and not row["algorithm"].startswith(PROBE)]


def library(row: Json) -> str:
    """Name the library of a rival's row; older documents have only the row's name."""
    return str(row.get("library") or row["algorithm"])


def chosen(rows: Iterable[Json]) -> list[Json]:
    """Return the rows of the plan's choice on plain tensors, in place and out of place."""
    return [row for row in measured(rows) if row["chosen"] and row["placement"] == "plain"]


def compared(call: Sequence[Json]) -> tuple[Json | None, Json | None]:
    """Return the plan's row and the other libraries' with right values, each the fastest of its forms."""
    ours = min(filter(median_us, chosen(call)), key=median_us, default=None)
    return ours, best_rival(call) if ours else None


def best_rival(call: Sequence[Json]) -> Json | None:
    """Return the fastest row of another library whose values are right."""
    return min((row for row in rivals(call) if not row["wrong"]), key=median_us, default=None)


def spread(time_us: Mapping[str, float]) -> float:
    """Return how far blocks differ: the middle four fifths of them, as a share of the median."""
    return (time_us["p90"] - time_us["p10"]) / time_us["p50"] if time_us["p50"] else 0.0


def steady(row: Json) -> bool:
    return spread(row["time_us"]) <= AGREE and row.get("blocks", MIN_BLOCKS) >= MIN_BLOCKS


def median_us(row: Json) -> float:
    return float(row["time_us"]["p50"])


def title(row: Json) -> str:
    parts = [row["op"], *([row["type"]] if row["size"] else [])]  # a barrier has no elements
    parts += [row["redop"]] if row["redop"] else []
    parts += [f"root {row['root']}"] if row["root"] is not None else []
    return ", ".join(parts + (["CUDA graph"] if row["mode"] == "graph" else []))


def label(row: Json) -> str:
    return str(row["algorithm"]) + ("*" if row["chosen"] else "")


# --- what follows from all rows


def bounds(document: Mapping[str, Any]) -> list[str]:
    """Return how many values were wrong, the mean of the plan's choices, and whether the run came to its end."""
    wrong, busbw = document["out_of_bounds"], [row["busbw"] for row in chosen(document["rows"]) if row["size"]]
    lines = [f"# Out of bounds values : {wrong['count']} {'OK' if wrong['okay'] else 'FAILED'}"]
    lines += [f"# Avg bus bandwidth    : {fmean(busbw):.3f}"] if busbw else []
    return [*lines, *unfinished(document)]


def only(documents: Sequence[Json], ops: Sequence[str]) -> list[Json]:
    """Return the documents that have rows of these operations, with those rows; all without any."""
    known = list(dict.fromkeys(row["op"] for document in documents for row in document["rows"]))
    if unknown := [op for op in ops if op not in known]:
        raise ValueError(f"there are no rows of {', '.join(unknown)}, but of {', '.join(known)}")
    parts = ({**of, "rows": [row for row in of["rows"] if not ops or row["op"] in ops]} for of in documents)
    return [part for part in parts if part["rows"] or not ops]


def with_speedups(rows: Sequence[Json]) -> list[Json]:
    """Return the rows, each with its speed-up over the fastest other library in the same form."""
    over = {_call_of(call[0]): best_rival(call) for call in grouped(rows, _call_of)}
    return [{**row, "speedup": _speedup(row, over[_call_of(row)])} for row in rows]


def _call_of(row: Json) -> tuple[Any, ...]:
    return series_of(row), row["root"], row["size"], row["in_place"]


def _speedup(row: Json, other: Json | None) -> Json | None:
    compares = other not in (None, row) and "skipped" not in row
    return {"over": other["algorithm"], **ratio_of(other["time_us"], row["time_us"])} if other and compares else None
