"""Pictures: panels of lines or bars in a grid, described as data; the only user of matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commlib.errors import Unsupported
from commlib.tools.report.document import Row
from commlib.tools.report.view import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")
HEIGHT_IN, WIDTH_IN, DPI = 3.8, 4.0, 100  # of a panel; the legend is as wide as one
MARKERS = "osD^vP*X<>ph8"  # lines differ without colour too
DASHED: dict[str, Any] = {"color": "black", "linestyle": (0, (6, 3)), "linewidth": 1.2, "zorder": 1}
FEW_TICKS = 5  # below bars, whose axis may span many decades
FEW_DECADES = 30  # up to this ratio of an axis' ends minor ticks are labelled: more would cover each other


@dataclass(frozen=True)
class Line:
    """One line; `style` has matplotlib's names."""

    label: str | None
    x: Sequence[float]
    y: Sequence[float]
    style: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bar:
    """A stretch of time in a lane; what has one label has one colour."""

    lane: str
    label: str
    start: float
    width: float


@dataclass(frozen=True)
class Tile:
    """One size of a strip: who it belongs to, the class of a page's style that gives it a look, and its two texts."""

    name: str
    look: str
    text: str
    tick: str  # below it


@dataclass(frozen=True)
class Panel:
    """One axis with a logarithm of sizes below; or bars, where there are no sizes; or lanes of a timeline; or tiles."""

    title: str
    xlabel: str = ""
    ylabel: str = ""
    lines: Sequence[Line] = ()
    bars: Mapping[str, float] = field(default_factory=dict)  # by label, in place of lines
    timeline: Sequence[Bar] = ()  # in place of lines: lanes below each other
    tiles: Sequence[Tile] = ()  # in place of lines, in pages alone: a strip from left to right
    ticks: Mapping[float, str] = field(default_factory=dict)  # sizes that are written below the axis
    log_y: bool = False
    y_range: tuple[float | None, float | None] = (None, None)
    limits: Sequence[tuple[float, str | None]] = ()  # dashed across, with their label
    marks: Sequence[float] = ()  # dashed upright
    spans: Sequence[tuple[float, float]] = ()  # grey upright
    legend: bool = True  # beside it; without, its lines are named beside the last panel of the row
    height: float = 1.0  # of its row, beside those of other rows


def look(at: int, **style: Any) -> dict[str, Any]:
    """Return the colour and marker of the line of that number."""
    return {"color": f"C{at % 10}", "marker": MARKERS[at % len(MARKERS)], "markersize": 5, **style}


def curves(
    rows: Iterable[Row], name: str, x: str, figure: Callable[[Row], float], looks: Mapping[str, Mapping[str, Any]]
) -> list[Line]:
    """Return the lines of a figure over x, in the order of the looks; `name` is the key of a row's line."""
    lines = {of[0][name]: of for of in grouped(rows, lambda row: row[name])}
    return [
        Line(label, [row[x] for row in lines[label]], [figure(row) for row in lines[label]], style)
        for label, style in looks.items()
        if label in lines
    ]


def lacks(picture: Path | None) -> str:
    """Say why no picture can be drawn here, "" if it can."""
    if picture is None or importlib.util.find_spec("matplotlib") is not None:
        return ""
    return f"no {picture.name}: drawing needs matplotlib; `pip install matplotlib`"


def check_name(path: Path | None) -> None:
    """Refuse a picture whose name ends in none of SUFFIXES, before anything is measured or printed."""
    if path is not None and path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--plot {path.name} is no {' or '.join(SUFFIXES)} file; give it such a name")


def draw(path: Path, caption: str, grid: Sequence[Sequence[Panel]]) -> None:
    """Draw rows of panels and write the file; without matplotlib Unsupported says how to get it."""
    check_name(path)
    if not grid:
        raise ValueError(f"nothing to draw in {path}: no row has a time")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported("--plot needs matplotlib: pip install matplotlib") from None
    heights = [panels[0].height for panels in grid]
    size = (WIDTH_IN * (1 + max(map(len, grid))), HEIGHT_IN * sum(heights) + 0.6)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    figure.suptitle(caption, fontsize=10)
    places = figure.subplots(len(grid), max(map(len, grid)), squeeze=False, height_ratios=heights)
    for panels, axes in zip(grid, places, strict=True):
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        for panel, axis in zip(panels, axes, strict=False):
            (_bars if panel.bars else _timeline if panel.timeline else _curves)(panel, axis)
        _legend(panels, axes)
    try:
        figure.savefig(path)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None


def _curves(panel: Panel, axis: Axes) -> None:
    for line in panel.lines:
        axis.plot(line.x, line.y, label=line.label, **line.style)
    for value, label in panel.limits:
        axis.axhline(value, label=label, **DASHED)
    for at in panel.marks:
        axis.axvline(at, color="grey", linestyle="--", linewidth=0.8)
    for low, high in panel.spans:
        axis.axvspan(low, high, color="grey", alpha=0.15, linewidth=0)
    axis.set_xscale("log", base=2)
    axis.set_xticks(list(panel.ticks), list(panel.ticks.values()), fontsize=8)
    axis.set_xticks([], minor=True)
    if panel.log_y:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(_number)
        low, high = axis.get_ylim()
        axis.yaxis.set_minor_formatter(_number if high < FEW_DECADES * low else "")
    axis.set_ylim(*panel.y_range)
    axis.set_xlabel(panel.xlabel)
    axis.set_ylabel(panel.ylabel)
    axis.set_title(panel.title, fontsize=10)
    axis.grid(True, which="major", color="0.9")


def _bars(panel: Panel, axis: Axes) -> None:
    from matplotlib.ticker import LogLocator

    values = list(panel.bars.values())
    bars = axis.barh([str(index) for index in range(len(values))], values, color="0.75", edgecolor="black", height=0.6)
    axis.bar_label(bars, list(panel.bars), padding=4)
    axis.set_xscale("log")
    # From half of the shortest; as much room again, and a little more, for the names.
    axis.set_xlim(min(values) / 2, max(values) * (2 * max(values) / min(values)) ** 1.3)
    axis.xaxis.set_major_locator(LogLocator(numticks=FEW_TICKS))
    axis.xaxis.set_major_formatter(_number)
    axis.set_yticks([])
    axis.invert_yaxis()
    axis.set_xlabel(panel.xlabel)
    axis.set_title(panel.title, fontsize=10)


def _timeline(panel: Panel, axis: Axes) -> None:
    lanes = list(dict.fromkeys(bar.lane for bar in panel.timeline))
    for at, bars in enumerate(grouped(panel.timeline, lambda bar: bar.label)):
        places = [lanes.index(bar.lane) for bar in bars]
        widths, starts = [bar.width for bar in bars], [bar.start for bar in bars]
        axis.barh(places, widths, left=starts, height=0.7, color=f"C{at % 10}", label=bars[0].label)
    axis.set_yticks(range(len(lanes)), lanes, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel(panel.xlabel)
    axis.set_title(panel.title, fontsize=10)


def _legend(panels: Sequence[Panel], axes: Sequence[Axes]) -> None:
    """Name every line once, beside the panels that ask for it."""
    entries: dict[str, Any] = {}
    for panel, axis in zip(panels, axes, strict=False):
        handles, labels = axis.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
        if panel.legend and entries:
            options: dict[str, Any] = {"frameon": False, "fontsize": 9, "handlelength": 3.0}
            axis.legend(entries.values(), entries.keys(), loc="upper left", bbox_to_anchor=(1.01, 1.02), **options)


def _number(value: float, position: float) -> str:
    return f"{value:g}"
