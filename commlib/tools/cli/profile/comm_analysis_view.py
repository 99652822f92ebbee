"""How a document of `commlib profile comm --analyze` is shown: a line for each call, and below it why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from commlib.counts import counted
from commlib.tools.bench.result import type_text
from commlib.tools.report.document import Row
from commlib.tools.report.figures import fitted, percent_text, size_text
from commlib.tools.report.table import Column
from commlib.tools.report.view import View, grouped, unfinished


class AnalysisView(View):
    """A line for each size and type of memory."""

    def columns(self) -> Sequence[Column]:
        """Return the columns of a row."""
        return [
            Column(" size", lambda row: f" {size_text(row['size'])}", 8, left=True),
            Column("memory", lambda row: row["placement"], 9, left=True),
            Column("algorithm", lambda row: row["algorithm"], 17, left=True),
            Column("expected", lambda row: fitted(row["expected_us"], 8), 8, "(us)"),
            Column("+-%", lambda row: percent_text(row["error"]), 4),
            Column("measured", lambda row: fitted(row["measured_us"], 8), 8, "(us)", spare=2),
            Column("limit", lambda row: fitted(row["limit_us"], 8), 8, "(us)"),
            Column("%limit", lambda row: percent_text(_share(row)), 6, spare=1),
        ]

    def opening(self) -> list[str]:
        """Say what is explained, and by which plan."""
        config, plan = self.document["config"], self.document["plan"]
        version = self.document["fingerprint"]["commlib"]
        where = f"{counted(config['ranks'], 'rank')} on {config['backend']}"
        return [
            f"# commlib {version} profile comm --analyze: {where}, plan {plan['digest']} of {plan['source']}",
            "# expected: latency + size / rate, fitted to what was measured of the algorithm; +-%: error of that fit",
        ]

    def title(self, rows: Sequence[Row]) -> str:
        """Name the calls."""
        config = self.document["config"]
        words = [config["op"], type_text(config["type"]), *([config["redop"]] if config["redop"] else [])]
        return ", ".join([*words, *(["CUDA graph"] if config["mode"] == "graph" else [])])

    def closing(self) -> list[str]:
        """Say of each call what decides, with which parameters, how data gets to the peers, and what bounds it."""
        alike = grouped(self.rows(), lambda row: json.dumps({**row, "placement": ""}))
        lines = [line for rows in alike for line in _told(rows)]
        return [*lines, "#", *(f"# {note}" for note in self.document["notes"]), *unfinished(self.document)]


def _told(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what rows say that differ by the type of memory alone."""
    row, memory = rows[0], " and ".join(row["placement"] for row in rows)
    first, *why = row["why"].splitlines()
    params = ", ".join(f"{name} {value}" for name, value in row["params"].items())
    yield from ("#", f"# {first.partition(' runs ')[0]}, {memory}, runs {row['algorithm']}")
    yield from (f"# {line}" for line in why)
    if params:
        yield f"#   parameters: {params}"
    yield f"#   copies: {row['copies']}"
    if row["expected_us"] is not None:
        rate = f" + size / {row['gbps']:.4g} GB/s" if row["gbps"] else ""
        yield f"#   expected: {row['latency_us']:.3g} us{rate}, {counted(row['sizes'], 'size')} of {row['times_from']}"
    if row["limit_us"] is not None:
        yield f"#   limit: {row['limit_is']}"


def _share(row: Row) -> float | None:
    if row["limit_us"] is None or not row["expected_us"]:
        return None
    return float(row["limit_us"] / row["expected_us"])
