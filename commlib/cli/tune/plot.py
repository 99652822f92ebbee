"""The picture of `commlib tune`: what each option takes over the best, what was chosen, and where it changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from commlib.cli.tune.table import size_text
from commlib.errors import Unsupported

if TYPE_CHECKING:
    from commlib.tuner import Case, Choice, Samples

MARKERS = "osv^D<>pP*Xhd"
MOST = 2.0  # times the best's: who takes longer is out of the picture


def plot(measured: Mapping[Case, tuple[Samples, Choice]], path: Path) -> None:
    """Draw one axis for each table and write the file."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise Unsupported("matplotlib is not here; pip install matplotlib") from None
    figure, axes = pyplot.subplots(len(measured), 1, figsize=(11, 4.2 * len(measured)), squeeze=False)
    for axis, (case, (samples, choice)) in zip(axes[:, 0], measured.items(), strict=True):
        _draw(axis, case, samples, choice)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw(axis: Any, case: Case, samples: Samples, choice: Choice) -> None:
    medians = {size: {o: median(times) for o, times in samples.times[size].items()} for size in samples.sizes}
    best = {size: min(of_size.values()) for size, of_size in medians.items()}
    names = sorted({option.algorithm for option in samples.options})
    for option in samples.options:
        sizes = [size for size in samples.sizes if option in medians[size]]
        ratios = [medians[size][option] / best[size] for size in sizes]
        at = names.index(option.algorithm)
        first = option == next(o for o in samples.options if o.algorithm == option.algorithm)
        style = {"color": f"C{at}", "marker": MARKERS[at % len(MARKERS)], "markersize": 3, "linewidth": 0.8}
        axis.plot(sizes, ratios, label=option.algorithm if first else None, alpha=0.7, **style)
    chosen = [medians[size].get(choice.at(size), float("nan")) / best[size] for size in samples.sizes]
    axis.plot(samples.sizes, chosen, color="black", linewidth=2.5, alpha=0.6, label="chosen")
    for stretch in choice.stretches:
        if stretch.until is not None:
            axis.axvline(stretch.until, color="grey", linestyle="--", linewidth=0.8)
        if stretch.interval is not None:
            axis.axvspan(*stretch.interval, color="grey", alpha=0.15, linewidth=0)
    ticks = [
        size for size in (1 << shift for shift in range(3, 41, 3)) if samples.sizes[0] <= size <= samples.sizes[-1]
    ]
    axis.set(title=str(case), xscale="log", ylim=(0.97, MOST), xlabel="bytes", ylabel="time over the best")
    axis.minorticks_off()
    axis.set_xticks(ticks, [size_text(size) for size in ticks])
    axis.grid(visible=True, alpha=0.3)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
