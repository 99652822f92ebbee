"""How a result of `commlib bench` is shown: nccl-tests' columns and ours, # lines above and below, and other forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

from commlib.counts import counted
from commlib.tools.bench import which
from commlib.tools.bench.result import (
    AGREE,
    FASTER,
    PLACES,
    TYPE_WIDTH,
    Measured,
    Skipped,
    Times,
    bounds,
    chosen,
    label,
    measured,
    median_us,
    rivals,
    series_of,
    steady,
    title,
    type_text,
    with_speedups,
)
from commlib.tools.report.chart import Panel
from commlib.tools.report.document import Row
from commlib.tools.report.figures import fitted, interval_text, size_text, whole_text
from commlib.tools.report.formats import csv_text
from commlib.tools.report.table import Column, fold
from commlib.tools.report.view import View, grouped

DIGITS = 8  # of a size in bytes; where they do not do, 268435456 is 256M
SOFTWARE = {"driver": "driver", "nccl": "NCCL", "cuda": "CUDA", "torch": "torch", "python": "Python"}


PARTS = {"time_us": [field.name for field in fields(Times)], "speedup": ["over", "ratio", "low", "high"]}
ROW = dict.fromkeys(field.name for kind in (Skipped, Measured) for field in fields(kind))
# The places of what a row has: the same columns for every run.
COLUMNS = [[f"{name}.{part}" for part in PARTS.get(name, ())] or [name] for name in [*ROW, "speedup"]]
CSV = {place: place for of_name in COLUMNS for place in of_name}


class BenchView(View):
    """nccl-tests' table, one line per algorithm and form."""

    forms: ClassVar = ("table", "page", "md", "csv", "json")

    def opening(self) -> list[str]:
        """Return the lines above the table; the document may have no rows yet, and before the start no peers."""
        document = self.document
        config, plan, machine = document["config"], document["plan"], document["fingerprint"]
        bound = "each on a core of its own" if config["cores_per_rank"] == 1 else "not bound to cores"
        few = "; -n N starts more" if config["ranks"] == 1 else f", {bound}"
        gpus = [f"{machine.get('gpus') or 1} x {machine['gpu']}"] if machine.get("gpu") else []
        settings = [f"{name}={value}" for name, value in machine["settings"].items()]
        versions = [f"{name} {machine[key]}" for key, name in SOFTWARE.items() if machine.get(key)]
        block = counted(config["iterations"], "iteration") if config["iterations"] else f"{config['block_us']:.0f} us"
        graph = " of replayed CUDA graphs" if config["mode"] == "graph" else ""
        low, high = config["blocks"]
        lines = [
            f"commlib {machine['commlib']} bench: {counted(config['ranks'], 'rank')} on {config['backend']}{few}",
            ", ".join([*gpus, machine["cpu"], counted(machine["cores"], "core"), f"Linux {machine['kernel']}"]),
            ", ".join([*versions, *settings]),
            f"{_duration(config)}; values are {'' if config['check'] else 'not '}checked",
            f"time: median of {low} to {high} interleaved blocks of {block}{graph}, slowest rank, per call",
            f"plan {plan['digest']} from {plan['source']}, {_origin(plan, config['ranks'])}; * marks its choice",
        ]
        lines += document["notes"]
        if config["baseline"]:
            what = f"speed-up: the time of {config['baseline']} over this time [over the middle four fifths of blocks]"
            lines.append(f"{what}; ~: blocks differ by more than {AGREE:.0%}")
        return [f"# {line}" for line in lines]

    def columns(self) -> list[Column]:
        """Return the columns of a row; what does not fit goes by `spare`, the highest first."""
        baseline, config = self.document["config"]["baseline"], self.document["config"]
        hosts = config["backend"] == "nccl" and config["mode"] != "graph"  # else the host is all
        return [
            Column("size", lambda row: whole_text(row["size"], DIGITS), DIGITS, "(B)"),
            Column("count", lambda row: whole_text(row["count"], DIGITS), DIGITS, "(elts)", spare=8),
            Column("type", lambda row: type_text(row["type"]), TYPE_WIDTH, spare=7),
            Column("redop", lambda row: row["redop"] or "none", 5, spare=9),
            Column("root", lambda row: str(-1 if row["root"] is None else row["root"]), 4, spare=10),
            Column("algorithm", lambda row: label(row) + "~" * (not row["ours"] and not steady(row)), 20, left=True),
            Column("form", lambda row: "in" if row["in_place"] else "out", 4, left=True, spare=2),
            Column("time", lambda row: fitted(median_us(row), 6), 6, "(us)"),
            Column("algbw", lambda row: fitted(row["algbw"], 5), 5, "GB/s", spare=8),
            Column("busbw", lambda row: fitted(row["busbw"], 5), 5, "GB/s", spare=1),
            Column("#wrong", lambda row: _wrong_text(row["wrong"]), 6, spare=3),
            *([Column("host", lambda row: fitted(row.get("host_us"), 5), 5, "(us)", spare=6)] * hosts),
            *([Column("speed-up", _speedup, 16, f"x {baseline}", spare=4)] * bool(baseline)),
        ]

    def closing(self) -> list[str]:
        """Return the lines below the table: what beats the plan, what was skipped, and nccl-tests' last two lines."""
        lines, rows = [], self.rows()
        series = list(grouped(rows, series_of))
        for of_series in series:
            texts = [*_faster(of_series), *_skipped(of_series)]
            lines += ["#", f"# {title(of_series[0])}"] if texts and len(series) > 1 else []
            lines += [f"# {text}" for text in texts]
        lines += ["#", bounds(self.document)[0]]
        if len({row["op"] for row in rows}) == 1:  # of different collectives a mean says nothing
            lines += [f"# Avg bus bandwidth    : {text}" for text in _average(rows)]
        return lines + bounds(self.document)[1:]

    def series(self, row: Row) -> tuple[Any, ...]:
        return series_of(row)

    def title(self, rows: Sequence[Row]) -> str:
        return title(rows[0])

    def items(self, rows: Sequence[Row]) -> list[Row]:
        return with_speedups(measured(rows), self.document["config"]["baseline"])

    def csv(self) -> str:
        return csv_text(with_speedups(self.rows(), self.document["config"]["baseline"]), CSV)

    def page(self) -> str:
        return "\n".join([*fold(self.opening(), self.width), *self.page_rest()])

    def page_rest(self) -> list[str]:
        return which.lines(self.document, self.width)

    def where(self, path: Path | None, picture: Path | None) -> list[str]:
        return which.where(path, picture, self.width)

    def panels(self) -> list[list[Panel]]:
        return which.panels(self.document)

    def chart_title(self) -> str:
        return which.chart_title(self.document)


def _duration(config: Mapping[str, Any]) -> str:
    seconds, start_s = config["seconds"], config.get("start_s")
    return f"about {start_s + seconds:.0f} s, {start_s:.0f} of them to start" if start_s else f"about {seconds:g} s"


def _origin(plan: Mapping[str, Any], ranks: int) -> str:
    match = plan.get("match", "shipped")
    if match == "here":
        return "measured on this machine"
    other = "" if match == "shipped" else f" but with {match}"
    return f"not measured on this machine{other}" + f" → commlib tune -n {ranks}" * (ranks > 1)


def _wrong_text(wrong: int | None) -> str:
    return "N/A" if wrong is None else str(wrong) if wrong < 1e6 else f"{wrong:.0e}"


def _speedup(row: Row) -> str:
    return interval_text(row["speedup"])


def _average(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what nccl-tests averages, of the plan's choices on plain tensors, and of peers."""
    others = [(of[0]["algorithm"], of) for of in grouped(rivals(rows), lambda row: row["algorithm"])]
    parts = [("", chosen(rows)), *others] if any(row["size"] for row in rows) else []
    texts = [f"{name} {mean(row['busbw'] for row in of):.3f}".strip() for name, of in parts if of]
    if texts and chosen(rows):
        yield texts[0] + f" ({', '.join(texts[1:])})" * (len(texts) > 1)


def _faster(rows: Sequence[Row]) -> Iterator[str]:
    """Name what is faster than the plan's choice by more than noise."""
    places: dict[tuple[str, str], list[str]] = {}
    for call in grouped(filter(median_us, measured(rows)), lambda row: (row["size"], row["placement"])):
        picked = min((row for row in call if row["chosen"]), key=lambda row: bool(row["in_place"]), default=None)
        if picked is None:
            continue
        here = (row for row in call if row["in_place"] == picked["in_place"] and (row["ours"] or steady(row)))
        best = min(here, key=median_us)
        if (ratio := median_us(picked) / median_us(best)) > FASTER:
            of_pair = places.setdefault((best["algorithm"], picked["algorithm"]), [])
            of_pair.append(f"{ratio:.2f}x at {size_text(picked['size'])}")
    for (winner, loser), where in places.items():
        yield f"faster here than the plan's {loser}: {winner}, {', '.join(where)}"


def _skipped(rows: Sequence[Row]) -> Iterator[str]:
    skipped = (row for row in rows if "skipped" in row)
    yield from {f"skipped {row['algorithm']} {PLACES[row['in_place']]}: {row['skipped']}": row for row in skipped}
