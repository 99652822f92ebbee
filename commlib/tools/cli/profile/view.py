"""How a document of `commlib profile` is shown: a line for each candidate, patterns side by side, and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from commlib.tools.baselines.kernels.case import FLOOR, OURS
from commlib.tools.cli.profile import notes
from commlib.tools.cli.profile.external import FLOORS
from commlib.tools.report.chart import OURS as THICK
from commlib.tools.report.chart import Line, Panel, look
from commlib.tools.report.document import Row
from commlib.tools.report.figures import fitted, interval_text, percent_text
from commlib.tools.report.table import Column, Table
from commlib.tools.report.view import View, device, grouped, unfinished

N, CANDIDATE, TIME, RATE, SHARE, RATIO = 6, 19, 7, 6, 5, 17  # characters


class ProfileView(View):
    """A line for each candidate that has a figure, cases of one series below each other."""

    def columns(self) -> Sequence[Column]:
        """Return the columns of a row."""
        return [
            Column("n", lambda row: str(row["n"]), N),
            Column("dim", lambda row: str(row["dim"]), 5, spare=8),
            Column("pattern", lambda row: str(row["pattern"]), 10, left=True, spare=9),
            Column("candidate", _label, CANDIDATE, left=True),
            Column("time", _time, TIME, "(us)"),
            Column("rate", lambda row: fitted(row["gbps"], RATE), RATE, "GB/s"),
            Column("%copy", _share, SHARE),
            Column("host", lambda row: _eager(row, "host_us"), RATE, "(us)", spare=6),
            Column("wall", lambda row: _eager(row, "wall_us"), RATE, "(us)", spare=5),
            Column("ratio", _ratio, RATIO, "to ours", spare=4),
        ]

    def opening(self) -> list[str]:
        """Say what is measured, and where."""
        return notes.opening(self.document)

    def closing(self) -> list[str]:
        """Say what follows from it."""
        return [*notes.closing(self.document), *unfinished(self.document)]

    def ending(self) -> list[str]:
        """Put patterns side by side above that, if it was asked for."""
        beside = self.side_by_side() if self.document["config"]["compare_patterns"] else []
        return [*beside, *super().ending()]

    def title(self, rows: Sequence[Row]) -> str:
        """Name kernel, row, type, pattern and heat."""
        return notes.title(rows[0])

    def items(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return whoever has a figure."""
        return [row for row in rows if row["time_us"] or row["eager"]]

    def side_by_side(self) -> Iterator[str]:
        """Yield time and share of each pattern beside each other, for each candidate of each problem."""
        timed = [row for row in self.rows() if row["time_us"]]
        for rows in grouped(timed, partial(notes.title, pattern="")):
            columns = [
                Column("n", lambda line: str(_first(line)["n"]), N),
                Column("candidate", lambda line: _label(_first(line)), CANDIDATE, left=True),
            ]
            for pattern in dict.fromkeys(row["pattern"] for row in rows):
                columns += [Column("time", partial(_of, pattern, _time), TIME, "(us)", pattern)]
                columns += [Column("%copy", partial(_of, pattern, _share), SHARE, "", pattern)]
            table = Table(columns, self.width)
            yield from table.head(notes.title(rows[0], pattern=""))
            for line in grouped(rows, lambda row: (row["n"], row["candidate"])):
                yield table.line({row["pattern"]: row for row in line})

    def panels(self) -> list[list[Panel]]:
        """Return latency, and share of the copy, of each series."""
        rows = [row for row in self.rows() if row["time_us"]]
        roles = {row["candidate"]: row["role"] for row in rows}
        first = next((name for name, role in roles.items() if role == OURS), "")
        dashes = {OURS: "-", FLOOR: ":"}
        styles = {name: look(at, linestyle=dashes.get(roles[name], "--")) for at, name in enumerate(roles)} | {
            first: THICK
        }
        return [_panels(of_series, styles) for of_series in grouped(rows, notes.title)]

    def chart_title(self) -> str:
        """Name kernel and machine."""
        return f"{self.document['config']['kernel']}, {device(self.document)}"


def _panels(rows: list[Row], styles: Mapping[str, Any]) -> list[Panel]:
    rows = sorted(rows, key=lambda row: int(row["n"]))
    of_copy = [row for row in rows if row["of_copy"] is not None and not row["candidate"].startswith(FLOORS)]

    def lines(rows: Sequence[Row], figure: Callable[[Row], float]) -> list[Line]:
        of_name = {of[0]["candidate"]: of for of in grouped(rows, lambda row: row["candidate"])}
        return [Line(name, {row["n"]: figure(row) for row in of}, styles[name]) for name, of in of_name.items()]

    times = lines(rows, lambda row: float(row["time_us"]["p50"]))
    shares = lines(of_copy, lambda row: 100 * float(row["of_copy"]))
    return [
        Panel(notes.title(rows[0]), "latency, µs", times, xlabel="n", log_y=True),
        Panel("bandwidth next to that of a copy", "% of copy", shares, xlabel="n", bottom=0, level=100),
    ]


def _label(row: Row) -> str:
    return str(row["candidate"]) + ("*" if row["role"] == OURS else "")


def _time(row: Row) -> str:
    return fitted(row["time_us"]["p50"], TIME) if row["time_us"] else "-"


def _share(row: Row) -> str:
    return percent_text(row["of_copy"])


def _eager(row: Row, figure: str) -> str:
    found = (row["eager"] or {}).get(figure)
    return fitted(found["p50"] if isinstance(found, dict) else found, RATE)


def _ratio(row: Row) -> str:
    return "WRONG" if row["wrong"] else interval_text(row["versus"])


def _of(pattern: str, read: Callable[[Row], str], line: Mapping[str, Row]) -> str:
    """Read the cell of a pattern off a line that has a row of each."""
    return read(line[pattern]) if pattern in line else "-"


def _first(line: Mapping[str, Row]) -> Row:
    return next(iter(line.values()))
