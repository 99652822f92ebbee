"""Pictures of `commlib bench`: latency and bus bandwidth over size, with the limit; the only user of matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commlib.cli.bench.rows import Row, by_series, label, measured, median_us, title
from commlib.errors import Unsupported

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")
WIDTH_IN, HEIGHT_IN, DPI = 12.0, 3.8, 100  # of the picture, of a series
MARKERS = "osD^vP*X<>ph8"  # lines differ without colour too
TICKS = 9  # at most so many sizes are written on an axis
Lines = dict[str, list[Row]]


def check_name(path: Path) -> None:
    """Refuse a picture whose name ends in none of SUFFIXES, before anything is measured or printed."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--plot {path} ends in neither of {', '.join(SUFFIXES)}; give it one")


def plot(document: dict[str, Any], path: Path) -> None:
    """Draw a row of two axes for each series; without matplotlib Unsupported says how to get it."""
    check_name(path)
    timed = [row for row in measured(document["rows"]) if median_us(row)]  # a logarithm needs more than nothing
    series = [rows for rows in map(_drawn, by_series(timed)) if rows]
    if not series:
        raise ValueError(f"nothing to draw in {path}: no row has a time")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported("--plot needs matplotlib: pip install 'commlib[plot]'") from None
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN * len(series) + 0.6), dpi=DPI, layout="constrained")
    figure.suptitle(_caption(document), fontsize=10)
    grid = figure.subplots(len(series), 2, squeeze=False)
    looks = _looks([row for rows in series for row in rows])
    for rows, (left, right) in zip(series, grid, strict=True):
        if any(row["size"] for row in rows):
            _draw(rows, (left, right), looks, document["limit"])
        else:  # a barrier moves no data: one time each
            _bars(rows, left)
            right.set_axis_off()
    try:
        figure.savefig(path)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None


def _caption(document: dict[str, Any]) -> str:
    config, machine = document["config"], document["fingerprint"]
    where = f"{machine.get('gpus') or 1} x {machine['gpu']}" if machine.get("gpu") else machine["cpu"]
    ended = "" if document["complete"] else ", not complete"
    return f"commlib {machine['commlib']}, {config['ranks']} ranks on {config['backend']}, {where}{ended}"


def _drawn(rows: Sequence[Row]) -> list[Row]:
    """Return the rows on plain tensors out of place; where there are none, those that come next to it."""
    forms = [(placement, in_place) for placement in ("plain", "symmetric") for in_place in (False, True)]
    found = ([row for row in rows if (row["placement"], row["in_place"]) == form] for form in forms)
    return next((rows for rows in found if rows), [])


def _by_algorithm(rows: Sequence[Row]) -> Lines:
    lines: Lines = {}
    for row in sorted(rows, key=lambda row: int(row["size"])):
        lines.setdefault(row["algorithm"], []).append(row)
    return lines


def _looks(rows: Sequence[Row]) -> Mapping[str, dict[str, Any]]:
    """Give each algorithm one colour and marker in all axes; other libraries' lines are dashed."""
    ours = {row["algorithm"]: row["ours"] for row in rows}
    return {
        name: {
            "color": f"C{index % 10}",
            "marker": MARKERS[index % len(MARKERS)],
            "linestyle": "-" if own else "--",
            "linewidth": 1.3,
            "markersize": 5,
            "zorder": 3,
        }
        for index, (name, own) in enumerate(ours.items())
    }


def _draw(
    rows: Sequence[Row], axes: tuple[Axes, Axes], looks: Mapping[str, dict[str, Any]], limit: Mapping[str, Any]
) -> None:
    left, right = axes
    rows = [row for row in rows if row["size"]]
    chosen = [row for row in sorted(rows, key=lambda row: int(row["size"])) if row["chosen"]]
    for axis, figure in ((left, median_us), (right, lambda row: float(row["busbw"]))):
        if chosen:  # below the lines, thick: it shows on both sides of the one it follows
            style: dict[str, Any] = {"color": "0.75", "linewidth": 7, "marker": "o", "markersize": 11, "zorder": 2}
            over = [row["size"] for row in chosen]
            axis.plot(over, [figure(row) for row in chosen], label="the plan's choice", **style)
        for name, line in _by_algorithm(rows).items():
            axis.plot([row["size"] for row in line], [figure(row) for row in line], label=name, **looks[name])
    _limit_line(left, limit["latency_us"], "µs")
    _limit_line(right, limit["busbw"], "GB/s")
    left.set_yscale("log")
    left.yaxis.set_major_formatter(_number)
    low, high = left.get_ylim()
    left.yaxis.set_minor_formatter(_number if high < 30 * low else "")  # over more decades they would cover each other
    right.set_ylim(bottom=0)
    form = "in place" if rows[0]["in_place"] else "out of place"
    form += ", symmetric tensors" if rows[0]["placement"] == "symmetric" else ""
    for axis, what in ((left, "latency, µs"), (right, "bus bandwidth, GB/s")):
        _sizes(axis, sorted({row["size"] for row in rows}))
        axis.set_ylabel(what)
        axis.set_title(f"{title(rows[0])} ({form})", fontsize=10)
        axis.grid(True, which="major", color="0.9")
    _legend(left, right)


def _legend(left: Axes, right: Axes) -> None:
    """Name every line of both axes once, beside them."""
    entries: dict[str, Any] = {}
    for axis in (left, right):
        handles, labels = axis.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    options: dict[str, Any] = {"frameon": False, "fontsize": 9, "handlelength": 3.0}
    right.legend(entries.values(), entries.keys(), loc="upper left", bbox_to_anchor=(1.01, 1.02), **options)


def _limit_line(axis: Axes, value: float | None, unit: str) -> None:
    if value:
        label = f"limit: {value:.3g} {unit}"
        axis.axhline(value, color="black", linestyle=(0, (6, 3)), linewidth=1.2, zorder=1, label=label)


def _sizes(axis: Axes, sizes: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    step = -(-len(sizes) // TICKS)
    axis.set_xticks(sizes[::step], [_size(size) for size in sizes[::step]], fontsize=8)
    axis.set_xticks([], minor=True)


def _size(num_bytes: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.3g}\n{unit}"
    return f"{num_bytes}\nB"


def _bars(rows: Sequence[Row], axis: Axes) -> None:
    times = [median_us(row) for row in rows]
    bars = axis.barh([str(index) for index in range(len(rows))], times, color="0.75", edgecolor="black", height=0.6)
    axis.bar_label(bars, [f"{label(row)}  {time:.3g} µs" for row, time in zip(rows, times, strict=True)], padding=4)
    axis.set_xscale("log")
    # From half of the shortest; as much room again, and a little more, for the names.
    axis.set_xlim(min(times) / 2, max(times) * (2 * max(times) / min(times)) ** 1.3)
    axis.xaxis.set_major_formatter(_number)
    axis.set_yticks([])
    axis.invert_yaxis()
    axis.set_xlabel("latency, µs")
    axis.set_title(f"{title(rows[0])} (* the plan's choice)", fontsize=10)


def _number(value: float, position: float) -> str:
    return f"{value:g}"
