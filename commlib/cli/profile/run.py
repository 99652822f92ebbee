"""One run of `commlib profile`: measure case after case, print, and write what there is whatever ends it."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch

from commlib.cli.profile.compiled import Compiler
from commlib.cli.profile.document import Report, Row
from commlib.cli.profile.external import External
from commlib.cli.profile.job import Job
from commlib.cli.profile.measure import measure_case
from commlib.cli.profile.notes import opening
from commlib.cli.profile.plot import plot
from commlib.cli.profile.table import Table, ending, series
from commlib.errors import CommError
from commlib.report import files
from commlib.report.progress import Progress
from commlib.report.table import fold

INTERRUPTED, INTERRUPTED_TEXT = 130, "interrupted"
STDOUT = Path("-")


@dataclass
class Output:
    """Where the run prints and writes."""

    command: str
    path: Path | None = None  # of the JSON; "-" is stdout, in place of the table
    picture: Path | None = None
    width: int = field(default_factory=lambda: shutil.get_terminal_size().columns)
    _series: tuple[Any, ...] = ()

    def open(self, document: dict[str, Any]) -> None:
        """Print what stands above the rows."""
        self._say(fold(opening(document), self.width))

    def rows(self, rows: list[Row]) -> None:
        """Print the rows of one case, below a head if a series begins with them."""
        table = Table(self.width)
        if series(rows[0]) != self._series:
            self._say(table.head(rows[0]))
        self._series = series(rows[0])
        self._say(table.body(rows))

    def close(self, document: dict[str, Any]) -> None:
        """Print what stands below the rows; write the files."""
        self._say(ending(document, self.width))
        if self.path == STDOUT:
            click.echo(json.dumps(document, indent=1))
        elif self.path is not None:
            files.write(self.path, json.dumps(document, indent=1))
        if self.picture is not None and document["rows"]:
            try:
                plot(document, self.picture)
            except (CommError, ValueError) as error:
                click.echo(f"commlib: no {self.picture.name}: {error}", err=True)

    def _say(self, lines: list[str]) -> None:
        if self.path != STDOUT:
            for line in lines:
                click.echo(line)


def main(job: Job, output: Output) -> int:
    """Measure until the end or Ctrl-C, and report what was measured; return the exit code."""
    threads = torch.get_num_threads()
    if job.settings.device.type == "cuda":
        torch.cuda.set_device(job.settings.device)
    else:
        torch.set_num_threads(1)  # as ours; several stall where cores are few
    try:
        return _until_it_ends(job, output)
    finally:
        torch.set_num_threads(threads)


def _until_it_ends(job: Job, output: Output) -> int:
    report = Report(job, output.command)
    progress = Progress(len(job.cases), output.width, sys.stderr.isatty())
    ended = ""
    try:
        _measure(job, report, output, progress)
    except KeyboardInterrupt:
        ended = INTERRUPTED_TEXT
        if not report.rows:
            click.echo("commlib: interrupted before anything was measured", err=True)
            return INTERRUPTED
    except (CommError, RuntimeError) as error:
        ended = str(error).splitlines()[0] if str(error) else type(error).__name__
        if not report.rows:
            raise
    _finish(report, output, progress, ended)
    return INTERRUPTED if ended == INTERRUPTED_TEXT else int(bool(ended) or report.failed)


def _measure(job: Job, report: Report, output: Output, progress: Progress) -> None:
    on_gpu = job.settings.device.type == "cuda"
    off = "" if job.compiles else "not asked for" if on_gpu else "takes long on the CPU; --compile"
    compiler = Compiler(off)
    external = [External(path) for path in job.peers]
    output.open(report.document(complete=False))
    budget_s = job.seconds / len(job.cases)
    for done, case in enumerate(job.cases):
        progress.show(done, str(case))
        group = measure_case(job.kernel, case, job.settings, budget_s, compiler, external)
        report.notes = [note for note in (compiler.note(),) if note]
        progress.clear()
        output.rows(report.add(group))


def _finish(report: Report, output: Output, progress: Progress, ended: str) -> None:
    """Report, undisturbed by a second Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        progress.clear()
        output.close(report.document(ended))
    finally:
        signal.signal(signal.SIGINT, before)
