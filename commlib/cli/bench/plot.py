"""Pictures of `commlib bench`: latency and bus bandwidth over size, with the limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commlib.bench.rows import PLACES, label, measured, median_us, series_of, title
from commlib.report.document import Row
from commlib.report.figures import about
from commlib.report.plot import Panel, curves, draw, look
from commlib.report.view import caption, grouped

TICKS = 9  # at most so many sizes are written on an axis
CHOSEN = "the plan's choice"
# Below the lines, thick: it shows on both sides of the one it follows.
CHOICE: dict[str, Any] = {"color": "0.75", "linewidth": 7, "marker": "o", "markersize": 11, "zorder": 2}
Looks = Mapping[str, dict[str, Any]]


def plot(document: dict[str, Any], path: Path) -> None:
    """Draw a row of two axes for each series."""
    config, machine = document["config"], document["fingerprint"]
    where = f"{machine.get('gpus') or 1} x {machine['gpu']}" if machine.get("gpu") else machine["cpu"]
    above = caption(document, f"{config['ranks']} ranks on {config['backend']}", where)
    timed = [row for row in measured(document["rows"]) if median_us(row)]  # a logarithm needs more than nothing
    series = [_drawn(rows) for rows in grouped(timed, series_of)]
    looks = _looks([row for rows in series for row in rows])
    draw(path, above, [_panels(rows, looks, document["limit"]) for rows in series])


def _drawn(rows: Sequence[Row]) -> list[Row]:
    """Return the rows on plain tensors out of place; where there are none, those that come next to it."""
    return min(grouped(rows, _form), key=lambda of: _form(of[0]))


def _form(row: Row) -> tuple[bool, bool]:
    return row["placement"] == "symmetric", row["in_place"]


def _looks(rows: Sequence[Row]) -> Looks:
    """Give each algorithm one colour and marker in all axes; other libraries' lines are dashed."""
    ours = {row["algorithm"]: row["ours"] for row in rows}
    styles = (look(at, linestyle="-" if own else "--", linewidth=1.3, zorder=3) for at, own in enumerate(ours.values()))
    return {CHOSEN: CHOICE, **dict(zip(ours, styles, strict=True))}


def _panels(rows: list[Row], looks: Looks, limit: Mapping[str, Any]) -> list[Panel]:
    rows = sorted(rows, key=lambda row: int(row["size"]))
    if not rows[-1]["size"]:  # a barrier moves no data: one time each
        bars = {f"{label(row)}  {median_us(row):.3g} µs": median_us(row) for row in rows}
        return [Panel(f"{title(rows[0])} (* the plan's choice)", "latency, µs", bars=bars)]
    rows = [row for row in rows if row["size"]]
    form = PLACES[rows[0]["in_place"]] + (", symmetric tensors" if rows[0]["placement"] == "symmetric" else "")
    shared: dict[str, Any] = {"title": f"{title(rows[0])} ({form})", "ticks": _ticks(rows)}
    latency, bandwidth = _limits(limit["latency_us"], "µs"), _limits(limit["busbw"], "GB/s")
    chosen = [{**row, "algorithm": CHOSEN} for row in rows if row["chosen"]]
    times = curves([*chosen, *rows], "algorithm", "size", median_us, looks)
    rates = curves([*chosen, *rows], "algorithm", "size", lambda row: float(row["busbw"]), looks)
    return [
        Panel(**shared, ylabel="latency, µs", lines=times, limits=latency, log_y=True, legend=False),
        Panel(**shared, ylabel="bus bandwidth, GB/s", lines=rates, limits=bandwidth, y_range=(0, None)),
    ]


def _limits(value: float | None, unit: str) -> list[tuple[float, str | None]]:
    return [(value, f"limit: {value:.3g} {unit}")] if value else []


def _ticks(rows: Sequence[Row]) -> dict[float, str]:
    sizes = sorted({row["size"] for row in rows})
    texts = {size: about(size) for size in sizes[:: -(-len(sizes) // TICKS)]}
    return {size: f"{text[:-1]}\n{text[-1]}iB" if text[-1] in "KMG" else f"{text}\nB" for size, text in texts.items()}
