"""One run of `commlib radix simulate`: play the traces, and keep what was found whatever ends it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from commlib.radix.trace import Trace
from commlib.tools.cli.radix.report import SimulationReport
from commlib.tools.report.run import Output, until_it_ends

PARTS, SHOWN_EVERY = 100, 64  # of a trace; requests


def main(paths: Sequence[Path], report: SimulationReport, output: Output) -> int:
    """Simulate every trace until the end or Ctrl-C; return the exit code."""
    return until_it_ends(partial(_simulate, paths, report, output), output.finish)


def _simulate(paths: Sequence[Path], report: SimulationReport, output: Output) -> None:
    report.notes = output.lacks()
    output.open(report, PARTS * len(paths))
    for at, path in enumerate(paths):
        trace, simulations = Trace(path), report.simulations()
        try:
            # Each request goes to all caches before the next is read: wherever this ends, they can be compared.
            for number, request in enumerate(trace):
                if number % SHOWN_EVERY == 0:
                    output.show(PARTS * at + int(PARTS * trace.share), f"{path.name}, request {number}")
                for simulation in simulations:
                    simulation.serve(request)
        except KeyboardInterrupt:
            output.rows([report.add(path, simulations)])
            raise
        output.rows([report.add(path, simulations)])
