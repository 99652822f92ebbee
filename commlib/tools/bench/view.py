"""How a result of `commlib bench` is shown: nccl-tests' columns and ours, # lines above and below, and other forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from commlib.counts import counted
from commlib.tools.bench import which
from commlib.tools.bench.result import (
    AGREE,
    PLACES,
    bounds,
    label,
    measured,
    median_us,
    series_of,
    steady,
    title,
    with_speedups,
)
from commlib.tools.report.chart import Panel
from commlib.tools.report.document import Row
from commlib.tools.report.figures import fitted, interval_text
from commlib.tools.report.formats import csv_text
from commlib.tools.report.table import Column, fold
from commlib.tools.report.view import View

SOFTWARE = {"driver": "driver", "nccl": "NCCL", "cuda": "CUDA", "torch": "torch", "python": "Python"}


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
        if config["peers"]:
            what = (
                "speed-up: the time of the fastest other library over this time [over the middle four fifths of blocks]"
            )
            lines.append(f"{what}; ~: blocks differ by more than {AGREE:.0%}")
        return [f"# {line}" for line in lines]

    def columns(self) -> list[Column]:
        """Return the columns of a row; what does not fit goes by `spare`, the highest first."""
        config = self.document["config"]
        hosts = config["backend"] == "nccl" and config["mode"] != "graph"  # else the host is all
        return [
            Column("size", lambda row: str(row["size"]), 10, "(B)"),
            Column("count", lambda row: str(row["count"]), 10, "(elts)", spare=8),
            Column("type", lambda row: row["type"], 13, spare=7),
            Column("redop", lambda row: row["redop"] or "none", 5, spare=9),
            Column("root", lambda row: str(-1 if row["root"] is None else row["root"]), 4, spare=10),
            Column("algorithm", lambda row: label(row) + "~" * (not row["ours"] and not steady(row)), 20, left=True),
            Column("form", lambda row: "in" if row["in_place"] else "out", 4, left=True, spare=2),
            Column("time", lambda row: fitted(median_us(row), 6), 6, "(us)"),
            Column("algbw", lambda row: fitted(row["algbw"], 5), 5, "GB/s", spare=8),
            Column("busbw", lambda row: fitted(row["busbw"], 5), 5, "GB/s", spare=1),
            Column("#wrong", lambda row: "N/A" if row["wrong"] is None else str(row["wrong"]), 6, spare=3),
            *([Column("host", lambda row: fitted(row.get("host_us"), 5), 5, "(us)", spare=6)] * hosts),
            *(
                [Column("speed-up", lambda row: interval_text(row["speedup"]), 16, "x best", spare=4)]
                * bool(config["peers"])
            ),
        ]

    def closing(self) -> list[str]:
        """Return the lines below the table: what others make faster, what was skipped, and what is wrong."""
        skipped = (row for row in self.document["rows"] if "skipped" in row)
        texts = {f"# skipped {label(row)} {PLACES[row['in_place']]}: {row['skipped']}": row for row in skipped}
        return ["#", *texts, *which.others(self.document), *bounds(self.document)]

    def series(self, row: Row) -> tuple[Any, ...]:
        return series_of(row)

    def title(self, rows: Sequence[Row]) -> str:
        return title(rows[0])

    def items(self, rows: Sequence[Row]) -> list[Row]:
        return with_speedups(measured(rows))

    def csv(self) -> str:
        return csv_text(with_speedups(self.document["rows"]))

    def page(self) -> str:
        return "\n".join([*fold(self.opening(), self.width), *self.page_rest()])

    def page_rest(self) -> list[str]:
        return which.lines(self.document, self.width)

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
