"""One run of `commlib radix simulate`: play the traces, print, and write what there is whatever ends it."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from commlib.cli.radix.document import Report, Settings
from commlib.cli.radix.plot import plot
from commlib.cli.radix.simulate import Simulation
from commlib.cli.radix.table import opening, table
from commlib.cli.radix.trace import Trace
from commlib.errors import CommError
from commlib.report import files
from commlib.report.progress import Progress

INTERRUPTED, INTERRUPTED_TEXT = 130, "interrupted"
STDOUT = Path("-")
SHOWN_EVERY = 64  # requests


@dataclass
class Output:
    """Where the run prints and writes."""

    path: Path | None = None  # of the JSON; "-" is stdout, in place of the tables
    picture: Path | None = None
    width: int = field(default_factory=lambda: shutil.get_terminal_size().columns)

    def say(self, lines: Sequence[str]) -> None:
        """Print lines, unless the document has stdout."""
        if self.path != STDOUT:
            for line in lines:
                click.echo(line)

    def write(self, document: dict[str, Any]) -> None:
        """Write the files."""
        if self.path == STDOUT:
            click.echo(json.dumps(document, indent=1))
        elif self.path is not None:
            files.write(self.path, json.dumps(document, indent=1))
        if self.picture is not None and document["traces"]:
            try:
                plot(document, self.picture)
            except (CommError, ValueError) as error:
                click.echo(f"commlib: no {self.picture.name}: {error}", err=True)


def main(paths: Sequence[Path], settings: Settings, command: str, output: Output) -> int:
    """Simulate every trace until the end or Ctrl-C; return the exit code."""
    report = Report(settings, command)
    output.say(opening(report.document(complete=False), output.width))
    ended = ""
    for path in paths:
        # All caches take each request before the next is read: wherever this ends, they can be compared.
        unlimited, simulations = Simulation("lru", None, settings.page_size), settings.simulations()
        progress = Progress(100, output.width)
        try:
            _play(Trace(path), [unlimited, *simulations], progress)
        except KeyboardInterrupt:
            ended = INTERRUPTED_TEXT
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would cut the report
        try:
            progress.clear()
            trace = report.add(path, unlimited, simulations)
            output.say(table(report.document(), trace, output.width))
        finally:
            signal.signal(signal.SIGINT, before)
        if ended:
            output.say([f"# {ended}: not complete"])
            break
    output.write(report.document(ended))
    return INTERRUPTED if ended else 0


def _play(trace: Trace, simulations: Sequence[Simulation], progress: Progress) -> None:
    for number, request in enumerate(trace):
        if number % SHOWN_EVERY == 0:
            progress.show(int(100 * trace.share), f"{trace.path.name}, request {number}")
        for simulation in simulations:
            simulation.serve(request)
