"""Pictures of `commlib bench`: beside peers, latency above the ratio to the best; alone, latency and bandwidth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from commlib.counts import counted
from commlib.tools.bench.rows import PLACES, chosen, label, library, measured, median_us, rivals, series_of, title
from commlib.tools.report.document import Row
from commlib.tools.report.figures import about
from commlib.tools.report.plot import Line, Panel, curves, draw, look
from commlib.tools.report.view import caption, grouped

TICKS = 9  # at most so many sizes are written on an axis
ABREAST = 3  # series
OURS = "commlib, by its plan"
CHOSEN = "the plan's choice"
# Below the lines, thick: it shows on both sides of the one it follows.
CHOICE: dict[str, Any] = {"color": "0.75", "linewidth": 7, "marker": "o", "markersize": 11, "zorder": 2}
THICK: dict[str, Any] = {"color": "black", "linewidth": 3.5, "marker": "o", "markersize": 6, "zorder": 4}
Looks = Mapping[str, dict[str, Any]]


def plot(document: dict[str, Any], path: Path) -> None:
    """Draw two axes for each series."""
    config, machine = document["config"], document["fingerprint"]
    where = f"{machine.get('gpus') or 1} x {machine['gpu']}" if machine.get("gpu") else machine["cpu"]
    beside, alone = _series(document)
    above = caption(document, f"{counted(config['ranks'], 'rank')} on {config['backend']}", where)
    draw(path, above, [*_abreast(beside), *alone])


def panels(document: dict[str, Any]) -> list[list[Panel]]:
    """Return the two panels of each series."""
    beside, alone = _series(document)
    return [*beside, *alone]


def _series(document: dict[str, Any]) -> tuple[list[list[Panel]], list[list[Panel]]]:
    """Return the panels of series with peers, and of those without."""
    timed = [row for row in measured(document["rows"]) if median_us(row)]  # a logarithm needs more than nothing
    series = list(grouped(timed, series_of))
    beside = [rows for rows in series if rows[0]["size"] and _others(rows)]
    alone = [_drawn(rows) for rows in series if rows not in beside]
    others = dict.fromkeys(library(row) for rows in beside for row in _others(rows))
    theirs = {name: look(at, linestyle="--", linewidth=1.3, zorder=3) for at, name in enumerate(others, 1)}
    looks = _looks([row for rows in alone for row in rows])
    return [_beside(rows, theirs) for rows in beside], [_panels(rows, looks, document["limit"]) for rows in alone]


def _abreast(series: Sequence[Sequence[Panel]]) -> Iterator[list[Panel]]:
    """Yield the latencies of some series, then what is below them."""
    for at in range(0, len(series), ABREAST):
        above, below = (list(level) for level in zip(*series[at : at + ABREAST], strict=True))
        yield [*above[:-1], replace(above[-1], legend=True)]
        yield below


def _beside(rows: Sequence[Row], looks: Looks) -> list[Panel]:
    """Draw the plan's choice and each library at its best, and how many times as long the best of them takes."""
    ours, theirs = _fastest(_plan(rows)), _others(rows)
    best = _fastest(theirs)
    of_library = {library(of[0]): _fastest(of) for of in grouped(theirs, library)}
    lines = [Line(OURS, list(ours), list(ours.values()), THICK)]
    lines += [Line(name, list(of), list(of.values()), looks[name]) for name, of in of_library.items()]
    shared = [size for size in ours if size in best]
    ratio = Line(None, shared, [best[size] / ours[size] for size in shared], THICK)
    ticks = _ticks(rows)
    return [
        Panel(title(rows[0]), ylabel="latency, µs", lines=lines, log_y=True, legend=False, ticks=ticks),
        Panel(
            "",
            ylabel="times as fast\nas the best other",
            lines=[ratio],
            limits=[(1, None)],
            legend=False,
            ticks=ticks,
            y_range=(0, None),
            height=0.5,
        ),
    ]


def _plan(rows: Sequence[Row]) -> list[Row]:
    return chosen(rows) or [row for row in rows if row["chosen"]]


def _others(rows: Sequence[Row]) -> list[Row]:
    return rivals(rows) if _plan(rows) else []


def _fastest(rows: Sequence[Row]) -> dict[int, float]:
    """Return the least median of each size, in the order of sizes."""
    found = {_size(of[0]): min(map(median_us, of)) for of in grouped(rows, _size)}
    return dict(sorted(found.items()))


def _size(row: Row) -> int:
    return int(row["size"])


def _drawn(rows: Sequence[Row]) -> list[Row]:
    """Return the rows on plain tensors out of place; where there are none, those that come next to it."""
    return min(grouped(rows, _form), key=lambda of: _form(of[0]))


def _form(row: Row) -> tuple[bool, bool]:
    return row["placement"] == "symmetric", row["in_place"]


def _looks(rows: Sequence[Row]) -> Looks:
    """Give each algorithm one colour and marker in all axes."""
    names = dict.fromkeys(row["algorithm"] for row in rows)
    return {CHOSEN: CHOICE, **{name: look(at, linewidth=1.3, zorder=3) for at, name in enumerate(names)}}


def _panels(rows: list[Row], looks: Looks, limit: Mapping[str, Any]) -> list[Panel]:
    rows = sorted(rows, key=_size)
    if not rows[-1]["size"]:  # a barrier moves no data: one time each
        bars = {f"{label(row)}  {median_us(row):.3g} µs": median_us(row) for row in rows}
        return [Panel(f"{title(rows[0])} (* the plan's choice)", "latency, µs", bars=bars)]
    form = PLACES[rows[0]["in_place"]] + (", symmetric tensors" if rows[0]["placement"] == "symmetric" else "")
    shared: dict[str, Any] = {"title": f"{title(rows[0])} ({form})", "ticks": _ticks(rows)}
    latency, bandwidth = _limits(limit["latency_us"], "µs"), _limits(limit["busbw"], "GB/s")
    choice = [{**row, "algorithm": CHOSEN} for row in rows if row["chosen"]]
    times = curves([*choice, *rows], "algorithm", "size", median_us, looks)
    rates = curves([*choice, *rows], "algorithm", "size", lambda row: float(row["busbw"]), looks)
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
