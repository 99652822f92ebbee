"""Charts: rows of panels by matplotlib, as a file or inside a page; the only user of matplotlib."""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commlib.tools.report.formats import about

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
NEEDS = "drawing needs matplotlib; `pip install matplotlib`"
WIDTH_IN, HEIGHT_IN, DPI = 5.2, 3.2, 110  # of a panel
MARGIN_IN = 0.9  # of what is above and below
SIZE = r' (width|height)="[\d.]+pt"'  # which a page has itself
INK = "#1a1d21"  # in a page it becomes the colour of its text
MARKERS = "osD^vP*X<>ph8"  # lines differ without colour too
OURS: dict[str, Any] = {"color": INK, "linewidth": 3, "marker": "o", "markersize": 5, "zorder": 4}
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "svg.fonttype": "none",  # text stays text: it can be searched, and is small
    "svg.hashsalt": "commlib",  # the same figures are the same file
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class Line:
    """One line; `style` has matplotlib's names."""

    label: str | None
    points: Mapping[Any, float]
    style: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """Lines over a logarithm of sizes."""

    title: str
    ylabel: str = ""
    lines: Sequence[Line] = ()
    log_y: bool = False
    bottom: float | None = None
    level: float | None = None  # dashed across


Rows = Sequence[Sequence[Panel]]


def look(at: int, **style: Any) -> dict[str, Any]:
    """Return the colour and marker of another's line of that number."""
    return {"color": f"C{at % 10}", "marker": MARKERS[at % len(MARKERS)], "markersize": 4, "linewidth": 1.3, **style}


def missing() -> str:
    return "" if importlib.util.find_spec("matplotlib") is not None else NEEDS


def check_name(path: Path | None) -> None:
    """Refuse a picture that cannot be drawn, before anything is measured or printed."""
    if path is not None and path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--plot {path.name} is no {' or '.join(SUFFIXES)} file; give it such a name")
    if path is not None and missing():
        raise ValueError(f"--plot: {NEEDS}")


def draw(path: Path, title: str, rows: Rows) -> None:
    if not rows:
        raise ValueError(f"nothing to draw in {path}: no row has a time")
    _save(rows, title, path)


def svg(title: str, rows: Rows) -> str:
    """Return the element that a page has of it, as wide as the page, in the colours of its text; "" without one."""
    if missing() or not rows:
        return ""
    text = io.StringIO()
    _save(rows, title, text, format="svg", transparent=True)
    _, _, element = text.getvalue().partition("<svg")
    return f"<svg{re.sub(SIZE, '', element)}".replace(INK, "currentColor")


def _save(rows: Rows, title: str, target: Any, **options: Any) -> None:
    from matplotlib import rc_context

    with rc_context(STYLE):
        suffix = options.get("format") or target.suffix[1:].lower()
        metadata = {"Date": None} if suffix == "svg" else {}
        _figure(rows, title).savefig(target, metadata=metadata, **options)


def _figure(rows: Rows, title: str) -> Figure:
    from matplotlib.figure import Figure

    width = max(map(len, rows))
    figure = Figure(
        figsize=(WIDTH_IN * max(width, 2), HEIGHT_IN * len(rows) + MARGIN_IN), dpi=DPI, layout="constrained"
    )
    figure.suptitle(title, fontsize=13, fontweight="bold")
    entries: dict[str, Any] = {}
    for panels, axes in zip(rows, figure.subplots(len(rows), width, squeeze=False), strict=True):
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        for panel, axis in zip(panels, axes, strict=False):
            _curves(panel, axis)
            axis.set_title(panel.title, fontsize=10)
            axis.set_ylabel(panel.ylabel)
            entries |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    if entries:
        figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _curves(panel: Panel, axis: Axes) -> None:
    from matplotlib.ticker import LogLocator

    for line in panel.lines:
        axis.plot(list(line.points), list(line.points.values()), label=line.label, **line.style)
    if panel.level is not None:
        axis.axhline(panel.level, color=INK, linestyle=(0, (6, 3)), linewidth=1, zorder=1)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(LogLocator(2, numticks=8))
    axis.xaxis.set_major_formatter(_size)
    axis.set_xticks([], minor=True)
    if panel.log_y:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_yticks([], minor=True)
    axis.set_ylim(panel.bottom)
    axis.tick_params(labelsize=8, which="both")
    axis.grid(True, which="major", color="grey", alpha=0.25)


def _size(value: float, position: float) -> str:
    text = about(value)
    return f"{text[:-1]} {text[-1]}iB" if text[-1].isalpha() else f"{text} B"
