"""One run: where it prints and writes, and that what was measured is kept whatever ends it."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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


def terminal_width() -> int:
    """Return how many characters a line may have."""
    return shutil.get_terminal_size().columns


@dataclass
class Output:
    """Where a run prints and writes. On ranks that do not speak nothing is printed or written."""

    view: type[View]
    form: str = "table"
    path: Path | None = None  # "-": JSON on stdout in place of the table
    picture: Path | None = None
    width: int = field(default_factory=terminal_width)
    speaks: bool = True
    _report: Report | None = None
    _view: View | None = None
    _series: Any = None
    _progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.path == STDOUT:
            self.form, self.path = "json", None

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
        self._view = self.view(report.document(complete=False), self.width)
        self.say(fold(self._view.opening(), self.width))
        self._progress = Progress(parts, self.width, self.speaks)

    def show(self, done: int, what: str) -> None:
        """Say to a person how far the run is."""
        if self._progress is not None:
            self._progress.show(done, what)

    def rows(self, rows: Sequence[Row]) -> None:
        """Print the rows of one part, below a head if a series begins with them."""
        assert self._view is not None
        view = self._view
        for shown in grouped(rows, view.series):
            self.say(view.head(shown) if view.series(shown[0]) != self._series else [])
            self._series = view.series(shown[0])
            self.say(view.body(shown))

    def say(self, lines: Sequence[str]) -> None:
        """Print lines of the table, unless another form is asked for."""
        if self.speaks and self.form == "table":
            self._clear()
            self._print(lines)

    def finish(self, ended: str) -> None:
        """Print what stands below the rows, or the whole in another form, and write the files."""
        self._clear()
        if not self.speaks:
            return
        if self._report is None or not self._report.rows:
            if ended == INTERRUPTED_TEXT:
                self._warn("interrupted before anything was measured")
            return
        view = self.view(self._report.document(ended), self.width)
        self.say(view.ending())
        if self.form != "table":
            self._print([view.render(self.form)])
        if self.path is not None:
            form = self.path.suffix[1:]
            write(self.path, view.render(form if form in view.forms else "json"))
        if self.picture is not None:
            try:
                view.plot(self.picture)
            except (CommError, OSError, ValueError, ImportError) as error:  # a picture is only an addition
                self._warn(f"no {self.picture.name}: {error}")

    def _print(self, lines: Sequence[str]) -> None:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()

    def _warn(self, text: str) -> None:
        if self.speaks:
            sys.stderr.write(f"commlib: {text}\n")

    def _clear(self) -> None:
        if self._progress is not None:
            self._progress.clear()


def until_it_ends(measure: Callable[[], None], finish: Callable[[str], None]) -> int:
    """Measure until the end, an error or Ctrl-C, and report what there is; return 0, or 130 after Ctrl-C."""
    try:
        try:
            measure()
        except CommError:
            time.sleep(AFTER_PEER_S)
            raise
    except KeyboardInterrupt:
        _undisturbed(finish, INTERRUPTED_TEXT)
        return INTERRUPTED
    except (CommError, RuntimeError) as error:
        _undisturbed(finish, str(error) or type(error).__name__)
        raise
    _undisturbed(finish, "")
    return 0


def _undisturbed(finish: Callable[[str], None], ended: str) -> None:
    """Report; a second Ctrl-C would cut it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        finish(ended)
    finally:
        signal.signal(signal.SIGINT, before)
