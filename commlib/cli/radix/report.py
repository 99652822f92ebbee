"""The document of `commlib radix simulate`, and how it is shown: a table for each trace, hit rate over capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from commlib.radix.simulate import Simulation
from commlib.report.document import Kind, Report, Row
from commlib.report.figures import count_text
from commlib.report.plot import Line, Panel, draw, look
from commlib.report.table import Column
from commlib.report.view import View, caption, grouped

KIND = Kind("commlib.radix_simulation", 1, "commlib radix simulate", "commlib.cli.radix")


@dataclass(frozen=True)
class Settings:
    """What every trace is simulated with."""

    policies: tuple[str, ...]
    capacities: tuple[int, ...]
    evictions: tuple[str, ...]
    page_size: int

    def simulations(self) -> list[Simulation]:
        """Return one for each capacity, policy and way of evicting."""
        every = product(self.capacities, self.policies, self.evictions)
        return [Simulation(policy, capacity, self.page_size, eviction) for capacity, policy, eviction in every]


class SimulationReport(Report):
    """Collects the traces of a run, each with the rows of its simulations."""

    def __init__(self, settings: Settings, command: str) -> None:
        super().__init__(KIND, command, "cpu")
        self.settings = settings

    def add(self, path: Path, unlimited: Simulation, simulations: Sequence[Simulation]) -> Row:
        """Take the figures of one trace and return them."""
        found, rows = unlimited.row(), [simulation.row() for simulation in simulations]
        for row in rows:
            best = max(each["hit_rate"] for each in rows if each["capacity"] == row["capacity"])
            row["best"] = row["requests"] > 0 and row["hit_rate"] == best
        names = ("requests", "prompt_tokens", "hit_rate")
        self.rows.append({"trace": path.name, **{name: found[name] for name in names}, "rows": rows})
        return self.rows[-1]

    def content(self) -> dict[str, Any]:
        """Return the settings and the traces."""
        return {"config": asdict(self.settings), "traces": self.rows}


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
        pages = f"pages of {config['page_size']} tokens" if config["page_size"] > 1 else "pages of 1 token"
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
        figures = f"{trace['requests']} requests, {count_text(trace['prompt_tokens'])} prompt tokens"
        return f"{trace['trace']}: {figures}, limit {100 * trace['hit_rate']:.1f} %"

    def items(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows of the traces, which know their limit."""
        return [{"trace": of["trace"], **row, "limit": of["hit_rate"]} for of in rows for row in of["rows"]]

    def plot(self, path: Path) -> None:
        """Draw hit rate over capacity, a line for each policy, a panel for each trace."""
        above = caption(self.document, f"page size {self.document['config']['page_size']}")
        draw(path, above, [[self._panel(trace)] for trace in self.rows()], width_in=9.0)

    def _panel(self, trace: Row) -> Panel:
        capacities, limit = self.document["config"]["capacities"], 100 * trace["hit_rate"]
        return Panel(
            f"{trace['trace']}: {trace['requests']} requests",
            xlabel="capacity, tokens",
            ylabel="hit rate, %",
            lines=[self._line(rows) for rows in grouped(trace["rows"], self._label)],
            ticks={capacity: count_text(capacity) for capacity in capacities},
            limits=[(limit, f"limit: {limit:.1f} %")],
            y_range=(0, None),
        )

    def _line(self, rows: Sequence[Row]) -> Line:
        config = self.document["config"]
        at = config["policies"].index(rows[0]["policy"])
        style = "-" if rows[0]["eviction"] == config["evictions"][0] else "--"
        # Lines that coincide show, one inside the other.
        looks = look(at, linestyle=style, linewidth=4.2 - 0.45 * at) | {"markersize": 9 - at}
        return Line(
            self._label(rows[0]), [row["capacity"] for row in rows], [100 * row["hit_rate"] for row in rows], looks
        )

    def _label(self, row: Row) -> str:
        """Name the policy of a row, and how it evicts where there is a choice."""
        return (
            f"{row['policy']} {row['eviction']}"
            if len(self.document["config"]["evictions"]) > 1
            else str(row["policy"])
        )


def _of_limit(row: Row) -> str:
    return f"{100 * row['hit_rate'] / row['limit']:.1f}" if row["limit"] else "100.0"


def _speed(row: Row) -> str:
    return "-" if row["requests_per_s"] is None else count_text(row["requests_per_s"])
