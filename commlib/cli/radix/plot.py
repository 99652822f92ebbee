"""Pictures of `commlib radix simulate`: hit rate over capacity, a line for each policy, an axis for each trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from commlib.cli.radix.document import label
from commlib.cli.radix.table import short
from commlib.errors import Unsupported

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")
WIDTH_IN, HEIGHT_IN, DPI = 9.0, 4.2, 100  # of the picture, of a trace
MARKERS = "osD^vP*X<>ph8"  # lines differ without colour too


def plot(document: dict[str, Any], path: Path) -> None:
    """Draw what was simulated; without matplotlib Unsupported says how to get it."""
    traces = [trace for trace in document["traces"] if trace["rows"]]
    if not traces:
        raise ValueError(f"nothing to draw in {path}: no trace was simulated")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported("--plot needs matplotlib: pip install 'commlib[plot]'") from None
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN * len(traces) + 0.4), dpi=DPI, layout="constrained")
    config = document["config"]
    ended = "" if document["complete"] else ", not complete"
    figure.suptitle(
        f"commlib {document['fingerprint']['commlib']}, page size {config['page_size']}{ended}", fontsize=10
    )
    for axis, trace in zip(figure.subplots(len(traces), 1, squeeze=False)[:, 0], traces, strict=True):
        _draw(axis, trace, config)
    try:
        figure.savefig(path)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None


def _draw(axis: Axes, trace: dict[str, Any], config: dict[str, Any]) -> None:
    lines: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in trace["rows"]:
        lines.setdefault((row["policy"], row["eviction"]), []).append(row)
    for (policy, eviction), rows in lines.items():
        at = config["policies"].index(policy)
        rows.sort(key=lambda row: int(row["capacity"]))
        axis.plot(
            [row["capacity"] for row in rows],
            [100 * row["hit_rate"] for row in rows],
            "-" if eviction == config["evictions"][0] else "--",
            label=label(rows[0], len(config["evictions"]) > 1),
            color=f"C{at}",
            marker=MARKERS[at % len(MARKERS)],
            markersize=9 - at,  # lines that coincide show, one inside the other
            linewidth=4.2 - 0.45 * at,
        )
    limit = 100 * trace["hit_rate"]
    axis.axhline(limit, color="black", linestyle=(0, (6, 3)), linewidth=1.2, label=f"limit: {limit:.1f} %")
    axis.set_xscale("log")
    axis.set_xticks(config["capacities"], [short(capacity) for capacity in config["capacities"]])
    axis.set_xticks([], minor=True)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("capacity, tokens")
    axis.set_ylabel("hit rate, %")
    axis.set_title(f"{trace['trace']}: {trace['requests']} requests", fontsize=10)
    axis.grid(True, which="major", color="0.9")
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False, fontsize=9, handlelength=3.0)
