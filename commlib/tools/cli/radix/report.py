"""The document of `commlib radix simulate`, and how it is shown: a table for each trace, hit rate over capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from commlib.counts import counted
from commlib.radix.simulate import Simulation
from commlib.tools.report.document import Kind, Report, Row
from commlib.tools.report.figures import count_text
from commlib.tools.report.plot import Panel, curves, draw, look
from commlib.tools.report.table import Column
from commlib.tools.report.view import View, caption

KIND = Kind("commlib.radix_simulation", 1, "commlib radix simulate", "commlib.tools.cli.radix")


class SimulationReport(Report):
    """Collects the traces of a run, each with the rows of its simulations; `config` is what all are simulated with."""

    def __init__(self, config: Mapping[str, Any], command: str) -> None:
        super().__init__(KIND, command, "cpu")
        self.config = config

    def simulations(self) -> list[Simulation]:
        """Return a cache without end, and one for each capacity, policy and way of evicting."""
        config, page_size = self.config, self.config["page_size"]
        every = product(config["capacities"], config["policies"], config["evictions"])
        limited = [Simulation(policy, capacity, page_size, eviction) for capacity, policy, eviction in every]
        return [Simulation("lru", None, page_size), *limited]

    def add(self, path: Path, simulations: Sequence[Simulation]) -> Row:
        """Take the figures of one trace and return them."""
        unlimited, *rows = (simulation.row() for simulation in simulations)
        for row in rows:
            best = max(each["hit_rate"] for each in rows if each["capacity"] == row["capacity"])
            row["best"] = row["requests"] > 0 and row["hit_rate"] == best
        figures = {name: unlimited[name] for name in ("requests", "prompt_tokens", "hit_rate")}
        self.rows.append({"trace": path.name, **figures, "rows": rows})
        return self.rows[-1]

    def content(self) -> dict[str, Any]:
        """Return the settings and the traces."""
        return {"config": dict(self.config), "traces": self.rows}


class SimulationView(View):
    """For each trace and capacity a line for each policy, the best one marked."""

    def columns(self) -> Sequence[Column]:
        """Return the columns of a policy with one capacity."""
        return [
            Column("capacity", lambda row: count_text(row["capacity"]), 9, "tokens"),
            Column("policy", lambda row: self._label(row) + ("*" if row["best"] else ""), 14, left=True),
            Column("hit rate", lambda row: f"{100 * row['hit_rate']:.1f}", 9, "%"),
            Column("of limit", _of_limit, 9, "%", spare=2),
            Column("evicted", lambda row: count_text(row["evicted_tokens"]), 9, "tokens", spare=3),
            Column("too large", lambda row: str(row["too_large"]), 9, "requests", spare=4),
            Column("speed", _speed, 9, "req/s", spare=1),
        ]

    def opening(self) -> list[str]:
        """Say how, and what the columns are."""
        config, machine = self.document["config"], self.document["fingerprint"]
        pages = f"pages of {counted(config['page_size'], 'token')}"
        return [
            f"# commlib {machine['commlib']} radix simulate on {machine['cpu']}",
            f"# {pages}, eviction {' and '.join(config['evictions'])}, one request at a time",
            "# hit rate: prompt tokens found in the cache; of limit: of what a cache without end finds",
        ]

    def rows(self) -> list[Row]:
        """Return the traces."""
        found: list[Row] = self.document["traces"]
        return found

    def series(self, row: Row) -> int:
        """Return what no other trace has: each is a table, even if two are of one file."""
        return id(row)

    def title(self, rows: Sequence[Row]) -> str:
        """Name the trace, and what a cache without end finds."""
        (trace,) = rows
        figures = f"{counted(trace['requests'], 'request')}, {count_text(trace['prompt_tokens'])} prompt tokens"
        return f"{trace['trace']}: {figures}, limit {100 * trace['hit_rate']:.1f} %"

    def items(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows of the traces, which know their limit."""
        return [{"trace": of["trace"], **row, "limit": of["hit_rate"]} for of in rows for row in of["rows"]]

    def plot(self, path: Path) -> None:
        """Draw hit rate over capacity, a line for each policy, a panel for each trace."""
        above = caption(self.document, f"page size {self.document['config']['page_size']}")
        draw(path, above, [[self._panel(trace)] for trace in self.rows()])

    def _panel(self, trace: Row) -> Panel:
        limit = 100 * trace["hit_rate"]
        rows = ({**row, "line": self._label(row)} for row in trace["rows"])
        return Panel(
            f"{trace['trace']}: {counted(trace['requests'], 'request')}",
            xlabel="capacity, tokens",
            ylabel="hit rate, %",
            lines=curves(rows, "line", "capacity", lambda row: 100 * row["hit_rate"], self._looks()),
            ticks={capacity: count_text(capacity) for capacity in self.document["config"]["capacities"]},
            limits=[(limit, f"limit: {limit:.1f} %")],
            y_range=(0, None),
        )

    def _looks(self) -> dict[str, dict[str, Any]]:
        """Return the looks of each line; lines that coincide show, one inside the other."""
        config = self.document["config"]
        return {
            self._label({"policy": policy, "eviction": eviction}): look(
                at, linestyle=style, linewidth=4.2 - 0.45 * at, markersize=9 - at
            )
            for at, policy in enumerate(config["policies"])
            for eviction, style in zip(config["evictions"], ("-", "--"), strict=False)
        }

    def _label(self, row: Row) -> str:
        """Name the policy of a row, and how it evicts where there is a choice."""
        several = len(self.document["config"]["evictions"]) > 1
        return f"{row['policy']} {row['eviction']}" if several else str(row["policy"])


def _of_limit(row: Row) -> str:
    return f"{100 * row['hit_rate'] / row['limit']:.1f}" if row["limit"] else "100.0"


def _speed(row: Row) -> str:
    return "-" if row["requests_per_s"] is None else count_text(row["requests_per_s"])
