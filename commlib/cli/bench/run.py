"""One run of `commlib bench` on one rank: join the others, measure, and let rank 0 print and write."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import commlib
from commlib import env
from commlib.cli.bench import plot as bench_plot
from commlib.cli.bench.columns import fold
from commlib.cli.bench.document import Report, Row
from commlib.cli.bench.formats import FORMS, render
from commlib.cli.bench.job import Bench, Job, arena_bytes, describe
from commlib.cli.bench.options import missing_for
from commlib.cli.bench.progress import Progress
from commlib.cli.bench.table import Table, closing, opening
from commlib.errors import CommError
from commlib.timing import measure_limit

if TYPE_CHECKING:
    from commlib.communicator import Communicator

INTERRUPTED, INTERRUPTED_TEXT = 130, "interrupted"
AFTER_PEER_S = 0.2  # the end of a peer that Ctrl-C reached may be seen before our own Ctrl-C


@dataclass
class Output:
    """Where rank 0 prints and writes; on the other ranks nothing is."""

    command: str
    form: str
    path: Path | None
    picture: Path | None
    width: int = field(default_factory=lambda: shutil.get_terminal_size().columns)
    speaks: bool = False
    _table: Table | None = None
    _series: tuple[Any, ...] = ()

    def open(self, document: dict[str, Any]) -> None:
        """Print what stands above the rows."""
        self._table = Table(self.width, document["config"])
        self._say(fold(opening(document), self.width))

    def rows(self, rows: list[Row]) -> None:
        """Print the rows of one call, below a head if a series begins with them."""
        assert self._table is not None
        for series, of_series in groupby(rows, lambda row: (row["op"], row["type"], row["redop"], row["mode"])):
            shown = list(of_series)
            self._say(self._table.head(shown) if series != self._series else [])
            self._series = series
            self._say(self._table.body(shown))

    def close(self, document: dict[str, Any]) -> None:
        """Print what stands below the rows, or the whole in another form; write the files."""
        if not self.speaks:
            return
        self._say(fold(closing(document), self.width))
        if self.form != "table":
            click.echo(render(document, self.form, self.width))
        if self.path is not None:
            suffix = self.path.suffix[1:]
            _replace(self.path, render(document, suffix if suffix in FORMS else "json", self.width))
        if self.picture is not None and document["rows"]:
            with _warned(f"no {self.picture.name}"):
                bench_plot.plot(document, self.picture)

    def _say(self, lines: list[str]) -> None:
        if self.speaks and self.form == "table":
            for line in lines:
                click.echo(line)


def main(job: Job, output: Output) -> int:
    """Measure until the end, an error or Ctrl-C, and report what was measured; return the exit code."""
    room = None if env.MAX_BYTES.is_set() else max(env.MAX_BYTES.default, arena_bytes(job))
    with commlib.init(backend=job.backend, max_bytes=room, plan=job.plan or "auto") as comm:
        if not 0 <= job.root < comm.size:
            raise click.UsageError(f"--root {job.root} is not one of {comm.size} ranks")
        if job.protocol.graph and comm.device.type != "cuda":
            raise click.UsageError(f"--graph needs GPUs; the ranks use {comm.device} (backend {comm.backend})")
        output.speaks = comm.rank == 0
        return _Run(comm, job, output).until_it_ends()


class _Run:
    """The steps of one run, and what there is to report whenever it ends."""

    def __init__(self, comm: Communicator, job: Job, output: Output) -> None:
        self.comm, self.job, self.output = comm, job, output
        self.report: Report | None = None
        self.progress = Progress(0, output.width, False)

    def until_it_ends(self) -> int:
        """Measure and report; whatever ends it, what was measured is kept."""
        try:
            try:
                bench = self._measure()
            except CommError:
                time.sleep(AFTER_PEER_S)
                raise
        except KeyboardInterrupt:
            self._finish(INTERRUPTED_TEXT)
            return INTERRUPTED
        except CommError as error:
            self._finish(str(error))
            raise
        self._finish("")
        bench.close()
        assert self.report is not None
        return int(self.report.wrong > 0)

    def _measure(self) -> Bench:
        notes = self._what_is_missing()
        limit = measure_limit(self.comm)
        bench = Bench(self.comm, self.job)
        report = self.report = Report(bench, limit, self.output.command, notes)
        self.output.open(report.document(complete=False))
        self.progress = Progress(len(bench.calls), self.output.width, self.output.speaks)
        self._show(bench, 0)
        for done, group in enumerate(bench.run(), 1):
            rows = report.add(group)
            self.progress.clear()
            self.output.rows(rows)
            self._show(bench, done)
        return bench

    def _show(self, bench: Bench, done: int) -> None:
        following = describe(*bench.calls[done]) if done < len(bench.calls) else ""
        self.progress.show(done, following)

    def _what_is_missing(self) -> list[str]:
        """Say at once which file will not be there in the end."""
        missing = missing_for(self.output.picture)
        if not missing:
            return []
        self.output.picture = None
        if self.output.speaks:
            click.echo(f"commlib: {missing}", err=True)
        return [missing]

    def _finish(self, ended: str) -> None:
        """Report, undisturbed by a second Ctrl-C."""
        if self.report is None:
            if self.output.speaks and ended == INTERRUPTED_TEXT:
                click.echo("commlib: interrupted before anything was measured", err=True)
            return
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.progress.clear()
            self.output.close(self.report.document(ended))
        finally:
            signal.signal(signal.SIGINT, before)


def _replace(path: Path, text: str) -> None:
    """Write so that a reader finds the old file or the whole new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text + "\n", encoding="utf-8", newline="")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def _warned(what: str) -> Iterator[None]:
    """Turn a fault of what is only an addition into one line."""
    try:
        yield
    except (CommError, OSError, ValueError, ImportError, click.ClickException) as error:
        print(f"commlib: {what}: {error}", file=sys.stderr)
