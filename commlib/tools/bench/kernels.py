"""Results of `commlib bench KERNEL`: a row for each candidate of a case, their document, and how it is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, Literal

import torch

from commlib.tools.baselines.kernels.case import FLOOR, OURS, PEER, PROBES, Candidate, Case
from commlib.tools.report.document import Document, Kind, Report, Row
from commlib.tools.report.formats import Column, fitted, interval_text, percent_text, percentiles_us, ratio_of
from commlib.tools.report.view import View, grouped, unfinished

Percentiles = dict[str, float]  # p0, p10, p50, p90, p100 of the blocks


@dataclass(frozen=True)
class KernelRow:
    """One candidate of one case."""

    kernel: str
    variant: str  # masked; fp8; decode; the operation of radix
    n: int  # ids, tokens or requests
    dim: int  # elements of a row, features of a head, new tokens of a request
    type: str
    pattern: str  # order of ids or slots
    heat: str  # cold or hot: whether sets exceed the cache
    candidate: str
    role: Literal["ours", "peer", "floor"]
    skipped: str  # why it was not measured
    wrong: int | None  # wrong elements; null where values are not compared
    error: float | None  # largest distance to float32, as a share of the largest value
    mode: Literal["graph", "eager"]
    sets: int  # sets of tensors in rotation
    bytes: int  # read and written by a call
    time_us: Percentiles | None  # a call in a replayed graph; on a CPU, calls back to back
    blocks: int | None
    calls: int | None  # of a block
    gbps: float | None
    of_bound: float | None  # time of the fastest floor over this one
    wall_us: Percentiles | None  # eager calls back to back, until the device is done
    host_us: float | None  # the same, until the host has made the call; GPUs only
    versus: dict[str, Any] | None  # of: whose time is over ours (of ours, the best peer); ratio, low, high
    length: int | None = None  # tokens of a request
    heads: int | None = None
    kv_heads: int | None = None
    page_size: int | None = None
    cache: str | None = None  # type of the cache
    detail: str | None = None  # what else counts for an operation of radix


@dataclass(frozen=True)
class KernelDocument(Document):
    """A run of `commlib bench KERNEL`."""

    config: dict[str, Any]  # kernel, variant, device, threads, cases, seconds
    wrong: int  # wrong elements of all candidates
    rows: list[KernelRow]
    notes: list[str]


KIND = Kind("commlib.kernels", 1, "commlib bench KERNEL", of=KernelDocument)


class KernelReport(Report):
    """Collects the rows of a run and makes the document of what is there so far."""

    def __init__(self, cases: Sequence[Case], device: torch.device, seconds: float, command: str) -> None:
        super().__init__(KIND, command, "" if device.type == "cuda" else "cpu")
        self.config = {
            "kernel": cases[0].kernel,
            "variant": cases[0].variant if cases[0].kernel != "radix" else "",
            "device": device.type,
            "threads": torch.get_num_threads(),
            "cases": len(cases),
            "seconds": seconds,
        }

    @property
    def wrong(self) -> int:
        """Return the wrong elements of all candidates."""
        return sum(row["wrong"] or 0 for row in self.rows)

    @property
    def failed(self) -> bool:
        """Whether a value is wrong, or ours could not be called."""
        return self.wrong > 0 or any(row["role"] == OURS and row["wall_us"] is None for row in self.rows)

    def content(self) -> dict[str, Any]:
        return {"config": self.config, "wrong": self.wrong, **super().content()}

    def add(self, case: Case, sets: int, candidates: Sequence[Candidate]) -> list[Row]:
        """Take the figures of one case and return its rows; they are relative to each other."""
        facts = {field.name: getattr(case, field.name) for field in fields(KernelRow) if hasattr(case, field.name)}
        ours = next((each for each in candidates if each.role == OURS and each.timed), None)
        right = [each for each in candidates if each.role == PEER and not each.wrong and each.timed]
        best = min(right, key=lambda each: each.median_s, default=None)
        floors = [each for each in candidates if each.role == FLOOR and not each.label.startswith(PROBES)]
        bound_s = min((each.median_s for each in floors if each.timed), default=None)
        rows = [{**facts, **self._figures(case, sets, each, bound_s)} for each in candidates]
        for each, row in zip(candidates, rows, strict=True):
            row["versus"] = _versus(best if each is ours else each, ours)
        self.rows += rows
        return rows

    def _figures(self, case: Case, sets: int, of: Candidate, bound_s: float | None) -> Row:
        timed, eager, replays = of.timed, of.eager, self.config["device"] == "cuda"
        return {
            "candidate": of.label,
            "role": of.role,
            "skipped": of.skipped,
            "wrong": of.wrong,
            "error": None if of.error in (None, math.inf) else float(f"{of.error:.3g}"),
            "mode": "graph" if replays else "eager",
            "sets": sets,
            "bytes": case.num_bytes,
            "time_us": percentiles_us(timed) if timed else None,
            "blocks": len(timed.times_s) if timed else None,
            "calls": timed.iterations if timed else None,
            "gbps": round(case.num_bytes / 1e9 / timed.median_s, 6) if timed and case.num_bytes else None,
            "of_bound": round(bound_s / timed.median_s, 6) if timed and bound_s else None,
            "wall_us": percentiles_us(eager) if eager else None,
            "host_us": round(median(eager.issue_s) * 1e6, 4) if replays and eager and eager.issue_s else None,
        }


def _versus(above: Candidate | None, ours: Candidate | None) -> Row | None:
    """Return how many times as long as ours another takes; of ours, the best of the peers."""
    if above is None or above.timed is None or ours is None or ours.timed is None:
        return None
    return {"of": above.label, **ratio_of(percentiles_us(above.timed), percentiles_us(ours.timed))}


# --- how they are shown: a line for each candidate, cases of one series below each other


def title(row: Row) -> str:
    """Name the series of a row, such as: store fp8, dim 128, bfloat16, random, cold, CUDA graph."""
    kernel, graph = f"{row['kernel']} {row['variant']}".strip(), "CUDA graph" * (row["mode"] == "graph")
    if row["kernel"] == "attention":
        parts = [f"{row['heads']}/{row['kv_heads']} heads of {row['dim']}", row["type"]]
        parts.append(f"pages of {row['page_size']}")
    elif row["kernel"] == "radix":
        parts = [row["detail"]]
    else:
        parts = [f"dim {row['dim']}", row["type"], row["pattern"], row["heat"]]
    return ", ".join(filter(None, [kernel, *parts, graph]))


def _figure(name: str, key: str, unit: str = "(us)", width: int = 7, spare: int = 0) -> Column:
    """Return the column of a figure, or of the median of one with percentiles."""

    def read(row: Row) -> str:
        value = row[key]
        return fitted(value["p50"] if isinstance(value, dict) else value, width)

    return Column(name, read, width, unit, spare=spare)


BOUNDS = {
    "radix": "rate: of one of the two prompts that are compared",
    "attention": "bound: 100 is a read of K and V; error: largest, as a share of the largest value in float32",
}
COPY = "rate: bytes read and written; bound: 100 is torch's copy_ of as many bytes, which is no peer"


class KernelView(View):
    """A line for each candidate that has a figure."""

    def columns(self) -> Sequence[Column]:
        config = self.document["config"]
        attention, on_gpu = config["kernel"] == "attention", config["device"] == "cuda"
        return [
            Column("batch" if attention else "n", lambda row: str(row["n"]), 6),
            *([Column("tokens", lambda row: str(row["length"]), 6)] * attention),
            Column("candidate", lambda row: row["candidate"] + "*" * (row["role"] == OURS), 18, left=True),
            _figure("time", "time_us"),
            _figure("rate", "gbps", "GB/s", spare=5),
            *([Column("bound", lambda row: percent_text(row["of_bound"]), 5, "(%)")] * (config["kernel"] != "radix")),
            *([Column("error", _error, 7)] * attention),
            *([_figure("host", "host_us", width=6, spare=6), _figure("wall", "wall_us", width=6, spare=7)] * on_gpu),
            Column("ratio", _ratio, 17, "to ours"),
        ]

    def opening(self) -> list[str]:
        config, machine = self.document["config"], self.document["fingerprint"]
        on_gpu = config["device"] == "cuda"
        where = machine.get("gpu") if on_gpu else f"{machine['cpu']}, {config['threads']} thread"
        cuda = f"CUDA {machine['cuda']}, driver {machine['driver']}, " if on_gpu and machine.get("cuda") else ""
        lines = [
            f"commlib {machine['commlib']} bench {config['kernel']}: {where}",
            f"torch {machine['torch']}, {cuda}Python {machine['python']}, Linux {machine['kernel']}",
            f"cases: {config['cases']}, about {config['seconds']:g} s, plus compilation; values are compared",
            *(GPU_TIMES if on_gpu else ["time: calls back to back, median of interleaved blocks"]),
            BOUNDS.get(config["kernel"], COPY),
            "ratio: the time over ours, and of the middle four fifths of blocks; the line of ours has the best peer's",
        ]
        return [f"# {line}" for line in lines]

    def closing(self) -> list[str]:
        lines, wrong = list(self.document["notes"]), self.document["wrong"]
        skipped = [row for row in self.document["rows"] if row["skipped"]]
        for same in grouped(skipped, lambda row: (row["candidate"], row["skipped"])):
            times = f" ({len(same)} cases)" if len(same) > 1 else ""
            lines.append(f"skipped {same[0]['candidate']}: {same[0]['skipped']}{times}")
        lines.append(f"Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
        return ["#", *(f"# {line}" for line in lines), *unfinished(self.document)]

    def title(self, rows: Sequence[Row]) -> str:
        return title(rows[0])

    def items(self, rows: Sequence[Row]) -> Sequence[Row]:
        return [row for row in rows if row["time_us"] or row["wall_us"]]


GPU_TIMES = (
    "time: a call in a replayed CUDA graph, median of interleaved replays; host, wall: eager calls back to back",
    "cold: sets in rotation exceed the cache; where they do not, it is emptied before each replay",
)


def _error(row: Row) -> str:
    if row["wrong"] is None:
        return "-"
    return "NaN" if row["error"] is None else f"{row['error']:.1e}"


def _ratio(row: Row) -> str:
    return "WRONG" if row["wrong"] else interval_text(row["versus"])
