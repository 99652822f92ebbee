"""Pictures of `commlib bench`: latency and bus bandwidth over size, with the limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commlib.bench.rows import label, measured, median_us, series_of, title
from commlib.report.document import Row
from commlib.report.plot import Line, Panel, draw, look
from commlib.report.view import caption, grouped

TICKS = 9  # at most so many sizes are written on an axis
# Below the lines, thick: it shows on both sides of the one it follows.
CHOICE: dict[str, Any] = {"color": "0.75", "linewidth": 7, "marker": "o", "markersize": 11, "zorder": 2}
Looks = Mapping[str, dict[str, Any]]
Figure = Callable[[Row], float]


def plot(document: dict[str, Any], path: Path) -> None:
    """Draw a row of two axes for each series."""
    timed = [row for row in measured(document["rows"]) if median_us(row)]  # a logarithm needs more than nothing
    series = [rows for rows in map(_drawn, grouped(timed, series_of)) if rows]
    looks = _looks([row for rows in series for row in rows])
    draw(path, _caption(document), [_panels(rows, looks, document["limit"]) for rows in series])


def _caption(document: dict[str, Any]) -> str:
    config, machine = document["config"], document["fingerprint"]
    where = f"{machine.get('gpus') or 1} x {machine['gpu']}" if machine.get("gpu") else machine["cpu"]
    return caption(document, f"{config['ranks']} ranks on {config['backend']}", where)


def _drawn(rows: Sequence[Row]) -> list[Row]:
    """Return the rows on plain tensors out of place; where there are none, those that come next to it."""
    forms = [(placement, in_place) for placement in ("plain", "symmetric") for in_place in (False, True)]
    found = ([row for row in rows if (row["placement"], row["in_place"]) == form] for form in forms)
    return next((rows for rows in found if rows), [])


def _looks(rows: Sequence[Row]) -> Looks:
    """Give each algorithm one colour and marker in all axes; other libraries' lines are dashed."""
    ours = {row["algorithm"]: row["ours"] for row in rows}
    return {
        name: look(at, linestyle="-" if own else "--", linewidth=1.3, zorder=3)
        for at, (name, own) in enumerate(ours.items())
    }


def _panels(rows: list[Row], looks: Looks, limit: Mapping[str, Any]) -> list[Panel]:
    rows = sorted(rows, key=lambda row: int(row["size"]))
    if not rows[-1]["size"]:  # a barrier moves no data: one time each
        bars = {f"{label(row)}  {median_us(row):.3g} µs": median_us(row) for row in rows}
        return [Panel(f"{title(rows[0])} (* the plan's choice)", "latency, µs", bars=bars)]
    rows = [row for row in rows if row["size"]]
    form = "in place" if rows[0]["in_place"] else "out of place"
    form += ", symmetric tensors" if rows[0]["placement"] == "symmetric" else ""
    shared: dict[str, Any] = {"title": f"{title(rows[0])} ({form})", "ticks": _ticks(rows)}
    latency, bandwidth = _limits(limit["latency_us"], "µs"), _limits(limit["busbw"], "GB/s")
    return [
        Panel(
            **shared,
            ylabel="latency, µs",
            lines=_lines(rows, median_us, looks),
            limits=latency,
            log_y=True,
            legend=False,
        ),
        Panel(
            **shared,
            ylabel="bus bandwidth, GB/s",
            lines=_lines(rows, _busbw, looks),
            limits=bandwidth,
            y_range=(0, None),
        ),
    ]


def _lines(rows: Sequence[Row], figure: Figure, looks: Looks) -> list[Line]:
    chosen = [row for row in rows if row["chosen"]]
    lines = [_line("the plan's choice", chosen, figure, CHOICE)] if chosen else []
    by_algorithm = {of[0]["algorithm"]: of for of in grouped(rows, lambda row: row["algorithm"])}
    return [
        *lines,
        *(_line(name, by_algorithm[name], figure, style) for name, style in looks.items() if name in by_algorithm),
    ]


def _line(name: str, rows: Sequence[Row], figure: Figure, style: Mapping[str, Any]) -> Line:
    return Line(name, [row["size"] for row in rows], [figure(row) for row in rows], style)


def _limits(value: float | None, unit: str) -> list[tuple[float, str | None]]:
    return [(value, f"limit: {value:.3g} {unit}")] if value else []


def _busbw(row: Row) -> float:
    return float(row["busbw"])


def _ticks(rows: Sequence[Row]) -> dict[float, str]:
    sizes = sorted({row["size"] for row in rows})
    return {size: _size(size) for size in sizes[:: -(-len(sizes) // TICKS)]}


def _size(num_bytes: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.3g}\n{unit}"
    return f"{num_bytes}\nB"
