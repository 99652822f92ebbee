"""One run: where it prints and writes, and that what was measured is kept whatever ends it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from commlib.errors import CommError
from commlib.report import plot
from commlib.report.document import Report, Row
from commlib.report.files import write
from commlib.report.progress import Progress
from commlib.report.table import fold
from commlib.report.view import View, grouped

INTERRUPTED, INTERRUPTED_TEXT = 130, "interrupted"
STDOUT = Path("-")
AFTER_PEER_S = 0.2  # the end of a peer that Ctrl-C reached may be seen before our own Ctrl-C


class Output:
    """Where a run prints and writes; a path "-" is JSON on stdout. Ranks that do not speak print and write nothing."""

    def __init__(
        self,
        view: type[View],
        form: str = "table",
        path: Path | None = None,
        picture: Path | None = None,
        speaks: bool = True,
    ) -> None:
        self.view, self.picture, self.speaks = view, picture, speaks
        self.form, self.path = ("json", None) if path == STDOUT else (form, path)
        self._report: Report | None = None
        self._series: Any = None  # the one that has its head

    def lacks(self) -> list[str]:
        """Say at once which file will not be there in the end; return it as a note."""
        missing = plot.lacks(self.picture)
        if not missing:
            return []
        self.picture = None
        self._warn(missing)
        return [missing]

    def open(self, report: Report, parts: int) -> None:
        """Print what stands above the rows of a report that will have so many parts."""
        self._report = report
        self._shown = self.view(report.document(complete=False))
        self._progress = Progress(parts, self._shown.width, self.speaks)
        self.say(fold(self._shown.opening(), self._shown.width))

    def show(self, done: int, what: str) -> None:
        """Say to a person how far the run is."""
        self._progress.show(done, what)

    def rows(self, rows: Sequence[Row]) -> None:
        """Print the rows of one part, below a head if a series begins with them."""
        view = self._shown
        for shown in grouped(rows, view.series):
            series = view.series(shown[0])
            self.say([*(view.head(shown) if series != self._series else []), *view.body(shown)])
            self._series = series

    def say(self, lines: Sequence[str]) -> None:
        """Print lines of the table, unless another form is asked for."""
        if self.speaks and self.form == "table":
            self._progress.clear()
            _print(lines)

    def finish(self, ended: str) -> None:
        """Print what stands below the rows, or the whole in another form, and write the files."""
        if not self.speaks:
            return
        if self._report is not None:
            self._progress.clear()
        if self._report is None or not self._report.rows:
            if ended == INTERRUPTED_TEXT:
                self._warn("interrupted before anything was measured")
            return
        view = self.view(self._report.document(ended), self._shown.width)
        _print(view.ending() if self.form == "table" else [view.render(self.form)])
        if self.path is not None:
            form = self.path.suffix[1:]
            write(self.path, view.render(form if form in view.forms else "json"))
        if self.picture is not None:
            try:
                view.plot(self.picture)
            except (CommError, OSError, ValueError, ImportError) as error:  # a picture is only an addition
                self._warn(f"no {self.picture.name}: {error}")

    def _warn(self, text: str) -> None:
        if self.speaks:
            sys.stderr.write(f"commlib: {text}\n")


def _print(lines: Sequence[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def until_it_ends(measure: Callable[[], None], finish: Callable[[str], None]) -> int:
    """Measure until the end, an error or Ctrl-C, and report what there is; return 0, or 130 after Ctrl-C."""
    ended, code, failure = "", 0, None
    try:
        try:
            measure()
        except CommError:
            time.sleep(AFTER_PEER_S)
            raise
    except KeyboardInterrupt:
        ended, code = INTERRUPTED_TEXT, INTERRUPTED
    except (CommError, RuntimeError) as error:
        ended, failure = str(error) or type(error).__name__, error
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would cut the report
    try:
        finish(ended)
    finally:
        signal.signal(signal.SIGINT, before)
    if failure is not None:
        raise failure
    return code
