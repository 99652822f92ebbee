"""The picture of `commlib tune`: what each option takes over the best, what was chosen, and where it changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from commlib.tools.report.figures import size_text
from commlib.tools.report.plot import Line, Panel, draw, look

if TYPE_CHECKING:
    from commlib.tools.tune.case import Case
    from commlib.tools.tune.choose import Choice
    from commlib.tools.tune.samples import Samples

MOST = 2.0  # times the best's: who takes longer is out of the picture
CHOSEN = {"color": "black", "linewidth": 2.5, "alpha": 0.6}


def plot(measured: Mapping[Case, tuple[Samples, Choice]], path: Path) -> None:
    """Draw one panel for each table and write the file."""
    draw(path, "commlib tune", [[_panel(case, *found)] for case, found in measured.items()])


def _panel(case: Case, samples: Samples, choice: Choice) -> Panel:
    ticks = [1 << shift for shift in range(3, 41, 3)]
    return Panel(
        str(case),
        xlabel="bytes",
        ylabel="time over the best",
        lines=list(_lines(samples, choice)),
        ticks={size: size_text(size) for size in ticks if samples.sizes[0] <= size <= samples.sizes[-1]},
        y_range=(0.97, MOST),
        marks=[stretch.until for stretch in choice.stretches if stretch.until is not None],
        spans=[stretch.interval for stretch in choice.stretches if stretch.interval is not None],
    )


def _lines(samples: Samples, choice: Choice) -> Iterator[Line]:
    """Yield a line for each option, in the looks of its algorithm, and the choice."""
    medians = {size: {o: median(times) for o, times in samples.times[size].items()} for size in samples.sizes}
    ratios = {
        size: {option: taken / min(of_size.values()) for option, taken in of_size.items()}
        for size, of_size in medians.items()
    }
    names = list(dict.fromkeys(option.algorithm for option in samples.options))
    named = set[str]()
    for option in samples.options:
        sizes = [size for size in samples.sizes if option in ratios[size]]
        label = None if option.algorithm in named else option.algorithm
        named.add(option.algorithm)
        style = look(names.index(option.algorithm), markersize=3, linewidth=0.8, alpha=0.7)
        yield Line(label, sizes, [ratios[size][option] for size in sizes], style)
    chosen = [ratios[size].get(choice.at(size), float("nan")) for size in samples.sizes]
    yield Line("chosen", samples.sizes, chosen, CHOSEN)
