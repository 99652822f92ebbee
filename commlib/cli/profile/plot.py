"""Pictures of `commlib profile`: latency and share of the copy over n."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commlib.cli.profile.case import FLOOR, OURS
from commlib.cli.profile.document import Row
from commlib.cli.profile.notes import title
from commlib.cli.profile.table import series
from commlib.errors import Unsupported

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN, HEIGHT_IN, DPI = 12.0, 3.8, 100  # of the picture, of a series
MARKERS = "osD^vP*X<>ph8"  # lines differ without colour too


def plot(document: dict[str, Any], path: Path) -> None:
    """Draw a row of two axes for each series; without matplotlib Unsupported says how to get it."""
    rows = [row for row in document["rows"] if row["time_us"]]
    if not rows:
        raise ValueError(f"nothing to draw in {path}: no row has a time")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported("--plot needs matplotlib: pip install 'commlib[plot]'") from None
    drawn = [list(of_series) for _, of_series in groupby(rows, series)]
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN * len(drawn) + 0.6), dpi=DPI, layout="constrained")
    machine = document["fingerprint"]
    ended = "" if document["complete"] else ", not complete"
    figure.suptitle(f"commlib {machine['commlib']}, {machine['device']}{ended}", fontsize=10)
    labels = list(dict.fromkeys(row["candidate"] for row in rows))
    for of_series, (left, right) in zip(drawn, figure.subplots(len(drawn), 2, squeeze=False), strict=True):
        _draw(of_series, labels, left, "latency, µs")
        _draw(of_series, labels, right, "% of copy")
        left.set_yscale("log")
        left.yaxis.set_major_formatter(_number)
        low, high = left.get_ylim()
        left.yaxis.set_minor_formatter(_number if high < 30 * low else "")  # over more they would cover each other
        right.set_ylim(bottom=0)
        right.axhline(100, color="black", linestyle=(0, (6, 3)), linewidth=1.0, zorder=1)
        right.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False, fontsize=9, handlelength=3.0)
    try:
        figure.savefig(path)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None


def _number(value: float, position: float) -> str:
    return f"{value:g}"


def _draw(rows: Sequence[Row], labels: Sequence[str], axis: Axes, what: str) -> None:
    for at, label in enumerate(labels):
        line = sorted((row for row in rows if row["candidate"] == label), key=lambda row: int(row["n"]))
        if what.startswith("%"):
            line = [row for row in line if row["of_copy"] is not None]
        if not line:
            continue
        values = [100 * row["of_copy"] if what.startswith("%") else row["time_us"]["p50"] for row in line]
        style = {OURS: "-", FLOOR: ":"}.get(line[0]["role"], "--")
        width = 2.4 if line[0]["role"] == OURS else 1.2
        look: dict[str, Any] = {"color": f"C{at % 10}", "marker": MARKERS[at % len(MARKERS)], "markersize": 5}
        axis.plot([row["n"] for row in line], values, style, label=label, linewidth=width, **look)
    counts = sorted({row["n"] for row in rows})
    axis.set_xscale("log", base=2)
    axis.set_xticks(counts, [str(n) for n in counts], fontsize=8)
    axis.set_xticks([], minor=True)
    axis.set_xlabel("n")
    axis.set_ylabel(what)
    axis.set_title(title(rows[0]), fontsize=10)
    axis.grid(True, which="major", color="0.9")
