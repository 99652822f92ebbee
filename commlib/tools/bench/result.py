"""The result of `commlib bench`: its dataclasses, which give the JSON schema too, and what is read off its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Annotated, Any, Literal

from commlib.tools.baselines import PROBE
from commlib.tools.report.document import Document, Kind
from commlib.tools.report.document import Row as Json
from commlib.tools.report.measured import MIN_BLOCKS
from commlib.tools.report.schema import Count, Number, Positive
from commlib.tools.report.view import grouped

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
Mode = Literal["eager", "graph"]


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to make calls of any size."""

    op: str
    type: str  # torch's name
    redop: str | None
    algorithm: str
    placement: Literal["plain", "symmetric"]
    in_place: bool
    mode: Mode


@dataclass(frozen=True, kw_only=True)
class Row(Way):
    """One way to make one call."""

    size: Count  # bytes, as nccl-tests counts them
    count: Count  # elements, as nccl-tests counts them
    root: int | None
    ours: bool
    chosen: bool  # by the plan
    rule: str | None  # of the plan
    why: str | None
    shape: str | None = None  # that was asked for, such as 16x7168
    library: str | None = None  # whose algorithm it is, where it is not ours


@dataclass(frozen=True, kw_only=True)
class Skipped(Row):
    """One that was not measured."""

    skipped: str  # why


@dataclass(frozen=True)
class Times:
    """Percentiles over the blocks of a call's time on the slowest rank, in µs."""

    p0: Number
    p10: Positive
    p50: Positive
    p90: Positive
    p100: Number
    p99: Number | None = None


@dataclass(frozen=True)
class Speedup:
    """How many times as long another row takes, with the 95 % interval."""

    over: str  # its algorithm
    ratio: Number
    low: Number
    high: Number


@dataclass(frozen=True)
class Overlap:
    """Medians of computing alone and with the call, in µs, and the share of the call that this hid."""

    compute_us: Number
    both_us: Number
    share: Annotated[float, ("minimum", 0), ("maximum", 1)]


@dataclass(frozen=True, kw_only=True)
class Measured(Row):
    """One that was measured."""

    time_us: Times
    iterations: Count  # of a block
    blocks: Count
    algbw: Number  # GB/s: size / time
    busbw: Number  # GB/s: algbw times the bus factor
    of_limit: Number | None  # busbw as a share of the limit's
    wrong: Count | None  # elements; null: not compared
    speedup: Speedup | None
    host_us: Number | None = None  # on GPUs: until the host has made an eager call
    window: Count | None = None  # messages of a time, each of `size`
    pairs: bool | None = None  # rank r sends to r + n/2; else each rank to the next one
    messages_s: Number | None = None  # messages a second, of all senders together
    overlap: Overlap | None = None


@dataclass(frozen=True, kw_only=True)
class Config:
    """What was asked for, and of whom."""

    ranks: Count
    backend: str
    mode: Mode
    cores_per_rank: int | None
    sizes: Sequence[Count]  # bytes asked for
    block_us: Number
    blocks: tuple[int, int]
    iterations: Count | None  # of a block; null: as many as fill block_us
    warmup: Count
    buffers: Count
    seed: int
    check: bool
    seconds: Number  # to measure for
    peers: Sequence[str]
    baseline: str | None  # the label that speed-ups are over
    params: Mapping[str, Sequence[int]] | None = None  # ours were also measured with; they stand behind the name
    agree: Number | None = None  # no speed-up is over a call whose blocks differ by more: (p90 - p10) / p50
    shapes: Sequence[str] | None = None  # what was asked for by name: 16x7168; empty of a number of bytes
    window: Count | None = None  # messages of send_recv in flight from each sender
    pairs: bool | None = None  # rank r sends to r + n/2; else each rank to the next one
    overlap: bool | None = None  # asynchronous calls, alone and beside computing
    percentiles: bool | None = None  # the table shows the fastest block and the 99th percentile
    types: Sequence[str] | None = None
    start_s: Number | None = None  # what starting the ranks took


@dataclass(frozen=True)
class PlanInForce:
    digest: str
    source: str  # a name, no path
    match: str | None = None  # 'here': measured on such a machine; 'shipped'; or what differs


@dataclass(frozen=True, kw_only=True)
class Fit(Way):
    """A way to make calls over its sizes: time = latency_us + bus factor * size / gbps."""

    latency_us: Number | None
    gbps: Number | None  # bus bandwidth of long calls
    half_bytes: Number | None  # the size that reaches half of gbps
    error: Number | None  # relative


@dataclass(frozen=True)
class Limit:
    """The most that bus bandwidth can be and the least that a call can take."""

    busbw: Number | None  # GB/s
    latency_us: Number | None
    what: str  # was measured
    by_size: Sequence[tuple[Number, Number]] = ()  # bytes, and the GB/s of calls of so many or more

    def at(self, num_bytes: int) -> float | None:
        """Return the ceiling of calls of a size: the best of copies of about that size, or larger ones."""
        about = max((size for size, _ in self.by_size if size <= num_bytes), default=0)
        return max((rate for size, rate in self.by_size if size >= about), default=self.busbw)


@dataclass(frozen=True)
class Bounds:
    """Wrong elements of all rows."""

    count: Count
    okay: bool


@dataclass(frozen=True)
class Average:
    """GB/s over sizes and forms, of a run of one collective."""

    plan: Number | None  # of the plan's choices on plain tensors
    peers: Mapping[str, Number | None]


@dataclass(frozen=True)
class Result(Document):
    """All of a run."""

    config: Config
    plan: PlanInForce
    limit: Limit
    rows: Sequence[Skipped | Measured]
    fits: Sequence[Fit]
    notes: Sequence[str]
    out_of_bounds: Bounds
    average_bus_bandwidth: Average


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
    right = [row for row in rivals(call) if not row["wrong"]] if ours else []
    return ours, min(right, key=median_us, default=None)


def spread(time_us: Mapping[str, float]) -> float:
    """Return how far blocks differ: the middle four fifths of them, as a share of the median."""
    return (time_us["p90"] - time_us["p10"]) / time_us["p50"] if time_us["p50"] else 0.0


def steady(row: Json) -> bool:
    return spread(row["time_us"]) <= AGREE and row.get("blocks", MIN_BLOCKS) >= MIN_BLOCKS


def versus(ours: Json, other: Json) -> dict[str, float]:
    """Return how many times as long the other takes: of medians, and of the middle four fifths of blocks."""
    a, b = other["time_us"], ours["time_us"]
    return {"ratio": a["p50"] / b["p50"], "low": a["p10"] / b["p90"], "high": a["p90"] / b["p10"]}


def median_us(row: Json) -> float:
    return float(row["time_us"]["p50"])


def title(row: Json) -> str:
    parts = [row["op"], *([type_text(row["type"])] if row["size"] else [])]  # a barrier has no elements
    parts += [row["redop"]] if row["redop"] else []
    parts += [f"root {row['root']}"] if row["root"] is not None else []
    return ", ".join(parts + (["CUDA graph"] if row["mode"] == "graph" else []))


def label(row: Json) -> str:
    return str(row["algorithm"]) + ("*" if row["chosen"] else "")


def type_text(name: str) -> str:
    return TYPES.get(name, name)[:TYPE_WIDTH]


# --- what follows from all rows


def averages(rows: Sequence[Json]) -> Average:
    """Average bus bandwidth of one collective as nccl-tests does: of the plan's choices on plain tensors, of peers."""
    moving = [row for row in measured(rows) if row["size"]]
    ours = [row["busbw"] for row in moving if row["chosen"] and row["placement"] == "plain"]
    others = grouped(rivals(moving), lambda row: row["algorithm"])
    one = len({row["op"] for row in moving}) == 1
    peers = {of[0]["algorithm"]: round(mean(row["busbw"] for row in of), 6) for of in others if one}
    return Average(round(mean(ours), 6) if ours and one else None, peers)


def only(documents: Sequence[Json], ops: Sequence[str]) -> list[Json]:
    """Return the documents that have rows of these operations, with those and their fits; all without any."""
    known = list(dict.fromkeys(row["op"] for document in documents for row in document["rows"]))
    if unknown := [op for op in ops if op not in known]:
        raise ValueError(f"there are no rows of {', '.join(unknown)}, but of {', '.join(known)}")
    if not ops:
        return list(documents)
    parts = ({part: [row for row in of[part] if row["op"] in ops] for part in ("rows", "fits")} for of in documents)
    return [{**of, **part} for of, part in zip(documents, parts, strict=True) if part["rows"]]


def with_speedups(document: Json) -> Json:
    """Compute speed-ups over the baseline from percentiles, where a document has one but none of them."""
    baseline, rows = document["config"]["baseline"], measured(document["rows"])
    if baseline is None or not rows or any(row["speedup"] for row in rows):
        return document
    calls = grouped(rows, lambda row: (series_of(row), row["root"], row["size"], row["in_place"]))
    over = {id(row): other for call in calls if (other := _baseline(call, baseline)) is not None for row in call}
    config = {**document["config"], "interval": "the range of the middle four fifths of blocks"}
    return {**document, "config": config, "rows": [_with_speedup(row, over.get(id(row))) for row in document["rows"]]}


def _baseline(call: Sequence[Json], label: str) -> Json | None:
    """Return the row to compare with: of that label, or of the fastest peer whose values are right."""
    best = label == "best"
    others = [row for row in rivals(call) if not row["wrong"]] if best else call
    other = min((row for row in others if best or row["algorithm"] == label), key=median_us, default=None)
    return other if other is not None and steady(other) else None


def _with_speedup(row: Json, other: Json | None) -> Json:
    return (
        row if other is None or other is row else {**row, "speedup": {"over": other["algorithm"], **versus(row, other)}}
    )
