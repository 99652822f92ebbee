"""Pictures of `commlib profile`: latency and share of the copy over n."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commlib.tools.baselines.kernels.case import FLOOR, OURS
from commlib.tools.cli.profile import notes
from commlib.tools.cli.profile.external import FLOORS
from commlib.tools.report.document import Row
from commlib.tools.report.plot import Panel, curves, draw, look
from commlib.tools.report.view import caption, grouped

STYLES: dict[str, dict[str, Any]] = {OURS: {"linestyle": "-", "linewidth": 2.4}, FLOOR: {"linestyle": ":"}}
Looks = Mapping[str, dict[str, Any]]


def plot(document: dict[str, Any], path: Path) -> None:
    """Draw a row of two panels for each series."""
    draw(path, caption(document, document["fingerprint"]["device"]), grid(document))


def grid(document: dict[str, Any]) -> list[list[Panel]]:
    """Return a row of two panels for each series."""
    rows = [row for row in document["rows"] if row["time_us"]]
    roles = {row["candidate"]: row["role"] for row in rows}
    looks = {
        name: look(at, **{"linestyle": "--", "linewidth": 1.2, **STYLES.get(role, {})})
        for at, (name, role) in enumerate(roles.items())
    }
    return [_panels(of_series, looks) for of_series in grouped(rows, notes.title)]


def _panels(rows: list[Row], looks: Looks) -> list[Panel]:
    rows = sorted(rows, key=lambda row: int(row["n"]))
    shared: dict[str, Any] = {
        "title": notes.title(rows[0]),
        "xlabel": "n",
        "ticks": {row["n"]: str(row["n"]) for row in rows},
    }
    shared_by = [row for row in rows if row["of_copy"] is not None and not row["candidate"].startswith(FLOORS)]
    shares = curves(shared_by, "candidate", "n", _share, looks)
    times = curves(rows, "candidate", "n", _time, looks)
    return [
        Panel(**shared, ylabel="latency, µs", lines=times, log_y=True, legend=False),
        Panel(**shared, ylabel="% of copy", lines=shares, limits=[(100, None)], y_range=(0, None)),
    ]


def _time(row: Row) -> float:
    return float(row["time_us"]["p50"])


def _share(row: Row) -> float:
    return 100 * float(row["of_copy"])
