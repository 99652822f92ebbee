"""One run of `commlib radix simulate`: play the traces, and keep what was found whatever ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from commlib.cli.radix.report import SimulationReport
from commlib.radix.simulate import Simulation
from commlib.radix.trace import Trace
from commlib.report.run import Output, until_it_ends

PARTS, SHOWN_EVERY = 100, 64  # of a trace; requests


def main(paths: Sequence[Path], report: SimulationReport, output: Output) -> int:
    """Simulate every trace until the end or Ctrl-C; return the exit code."""
    return until_it_ends(partial(_simulate, paths, report, output), output.finish)


def _simulate(paths: Sequence[Path], report: SimulationReport, output: Output) -> None:
    report.notes = output.lacks()
    output.open(report, PARTS * len(paths))
    for at, path in enumerate(paths):
        unlimited, simulations = Simulation("lru", None, report.settings.page_size), report.settings.simulations()

        def show(share: float, number: int, first: int = PARTS * at, name: str = path.name) -> None:
            output.show(first + int(PARTS * share), f"{name}, request {number}")

        try:
            _play(Trace(path), [unlimited, *simulations], show)
        except KeyboardInterrupt:
            output.rows([report.add(path, unlimited, simulations)])
            raise
        output.rows([report.add(path, unlimited, simulations)])


def _play(trace: Trace, simulations: Sequence[Simulation], show: Callable[[float, int], None]) -> None:
    """Give each request to all caches before the next is read: wherever this ends, they can be compared."""
    for number, request in enumerate(trace):
        if number % SHOWN_EVERY == 0:
            show(trace.share, number)
        for simulation in simulations:
            simulation.serve(request)
