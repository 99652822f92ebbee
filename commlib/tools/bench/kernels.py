"""Results of `commlib bench KERNEL`: a row for each candidate of a case, and the document that has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from commlib.tools.baselines.kernels.case import FLOOR, OURS, PEER, PROBES, Candidate, Case
from commlib.tools.report.document import Document, Kind, Report, Row
from commlib.tools.report.measured import percentiles_us, ratio_row
from commlib.tools.report.schema import Count, Number, Positive

Percentiles = dict[str, Number]  # p0 to p100 of the blocks


@dataclass(frozen=True)
class Versus:
    """A ratio of medians with its 95 % interval."""

    of: str  # the candidate whose time is over ours; of ours, the best peer
    ratio: Positive
    low: Positive
    high: Positive


@dataclass(frozen=True)
class KernelRow:
    """One candidate of one case."""

    kernel: str
    variant: str  # masked; fp8; decode or prefill; the operation of radix
    n: Count  # ids, tokens or requests
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
    sets: Count  # sets of tensors in rotation
    bytes: Count  # read and written by a call
    flops: Count
    time_us: Percentiles | None  # a call in a replayed graph; on a CPU, calls back to back
    blocks: int | None
    calls: int | None  # of a block
    gbps: float | None
    tflops: float | None
    of_bound: float | None  # time of the fastest floor over this one
    wall_us: Percentiles | None  # eager calls back to back, until the device is done
    host_us: float | None  # the same, until the host has made the call; GPUs only
    versus: Versus | None
    length: int | None = None  # tokens of a request
    heads: int | None = None
    kv_heads: int | None = None
    page_size: int | None = None
    cache: str | None = None  # type of the cache
    ragged: bool | None = None  # lengths from 1 to twice `length`
    detail: str | None = None  # what else counts for an operation of radix


@dataclass(frozen=True)
class KernelConfig:
    """How a run was measured."""

    kernel: str
    variant: str
    device: Literal["cpu", "cuda"]
    threads: int
    cases: int
    seconds: Positive
    seed: int
    flush: bool
    cold_bytes: Count
    max_sets: int
    baselines: list[str]
    compare_patterns: bool


@dataclass(frozen=True)
class KernelDocument(Document):
    """A run of `commlib bench KERNEL`."""

    config: KernelConfig
    wrong: int  # wrong elements of all candidates
    rows: list[KernelRow]
    notes: list[str]


KIND = Kind("commlib.kernels", 1, "commlib bench KERNEL", of=KernelDocument)


class KernelReport(Report):
    """Collects the rows of a run and makes the document of what is there so far."""

    def __init__(self, config: KernelConfig, command: str) -> None:
        super().__init__(KIND, command, "cpu" if config.device == "cpu" else "")
        self.config = config

    @property
    def wrong(self) -> int:
        """Return the wrong elements of all candidates."""
        return sum(row["wrong"] or 0 for row in self.rows)

    @property
    def failed(self) -> bool:
        """Whether a value is wrong, or ours could not be called."""
        return self.wrong > 0 or any(row["role"] == OURS and row["wall_us"] is None for row in self.rows)

    def add(self, case: Case, sets: int, candidates: Sequence[Candidate]) -> list[Row]:
        """Take the figures of one case and return its rows."""
        measured = _Measured(case, sets, candidates, self.config)
        rows = [measured.row(candidate) for candidate in candidates]
        self.rows += rows
        return rows

    def content(self) -> dict[str, Any]:
        """Return how it was measured, and the rows."""
        return {"config": vars(self.config), "wrong": self.wrong, "rows": self.rows, "notes": self.notes}


@dataclass
class _Measured:
    """One case: figures are relative to those of its candidates."""

    case: Case
    sets: int
    candidates: Sequence[Candidate]
    config: KernelConfig

    def row(self, of: Candidate) -> Row:
        case, timed, eager, bound_s = self.case, of.timed, of.eager, self._bound_s()
        replays = self.config.device == "cuda"
        return {
            **case.facts,
            "candidate": of.label,
            "role": of.role,
            "skipped": of.skipped,
            "wrong": of.wrong,
            "error": None if of.error in (None, math.inf) else float(f"{of.error:.3g}"),
            "mode": "graph" if replays else "eager",
            "sets": self.sets,
            "bytes": case.num_bytes,
            "flops": case.flops,
            "time_us": percentiles_us(timed) if timed else None,
            "blocks": len(timed.times_s) if timed else None,
            "calls": timed.iterations if timed else None,
            "gbps": round(case.num_bytes / 1e9 / timed.median_s, 6) if timed and case.num_bytes else None,
            "tflops": round(case.flops / 1e12 / timed.median_s, 4) if timed and case.flops else None,
            "of_bound": round(bound_s / timed.median_s, 6) if timed and bound_s else None,
            "wall_us": percentiles_us(eager) if eager else None,
            "host_us": round(median(eager.issue_s) * 1e6, 4) if replays and eager and eager.issue_s else None,
            "versus": self._versus(of),
        }

    def _bound_s(self) -> float | None:
        floors = (each for each in self.candidates if each.role == FLOOR and not each.label.startswith(PROBES))
        return min((each.median_s for each in floors if each.timed), default=None)

    def _versus(self, of: Candidate) -> Row | None:
        """Compare ours with the best of the peers, anyone else with ours: times as long as ours it takes."""
        ours = next((each for each in self.candidates if each.role == OURS and each.timed), None)
        right = (each for each in self.candidates if each.role == PEER and not each.wrong)
        above = min(right, key=lambda each: each.median_s, default=None) if of is ours else of
        if ours is None or ours.timed is None or above is None or above.timed is None:
            return None
        ratio = ratio_row(above.timed.times_s, ours.timed.times_s, self.config.seed)
        return None if ratio is None else {"of": above.label, **ratio}
