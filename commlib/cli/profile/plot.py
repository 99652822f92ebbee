"""Pictures of `commlib profile`: latency and share of the copy over n."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commlib.cli.profile import notes
from commlib.peers.kernels.case import FLOOR, OURS
from commlib.report.document import Row
from commlib.report.plot import Line, Panel, draw, look
from commlib.report.view import caption, grouped

STYLES: dict[str, dict[str, Any]] = {OURS: {"linestyle": "-", "linewidth": 2.4}, FLOOR: {"linestyle": ":"}}
Looks = Mapping[str, dict[str, Any]]


def plot(document: dict[str, Any], path: Path) -> None:
    """Draw a row of two panels for each series."""
    rows = [row for row in document["rows"] if row["time_us"]]
    roles = {row["candidate"]: row["role"] for row in rows}
    looks = {
        name: look(at, **{"linestyle": "--", "linewidth": 1.2, **STYLES.get(role, {})})
        for at, (name, role) in enumerate(roles.items())
    }
    above = caption(document, document["fingerprint"]["device"])
    draw(path, above, [_panels(of_series, looks) for of_series in grouped(rows, notes.title)])


def _panels(rows: list[Row], looks: Looks) -> list[Panel]:
    rows = sorted(rows, key=lambda row: int(row["n"]))
    shared: dict[str, Any] = {
        "title": notes.title(rows[0]),
        "xlabel": "n",
        "ticks": {row["n"]: str(row["n"]) for row in rows},
    }
    shares = _lines([row for row in rows if row["of_copy"] is not None], _share, looks)
    return [
        Panel(**shared, ylabel="latency, µs", lines=_lines(rows, _time, looks), log_y=True, legend=False),
        Panel(**shared, ylabel="% of copy", lines=shares, limits=[(100, None)], y_range=(0, None)),
    ]


def _lines(rows: Sequence[Row], figure: Callable[[Row], float], looks: Looks) -> list[Line]:
    lines = {of[0]["candidate"]: of for of in grouped(rows, lambda row: row["candidate"])}
    return [
        Line(name, [row["n"] for row in lines[name]], [figure(row) for row in lines[name]], style)
        for name, style in looks.items()
        if name in lines
    ]


def _time(row: Row) -> float:
    return float(row["time_us"]["p50"])


def _share(row: Row) -> float:
    return 100 * float(row["of_copy"])
