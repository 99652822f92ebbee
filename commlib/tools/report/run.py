"""One run: where it prints and writes, and that what was measured is kept whatever ends it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commlib.errors import CommError
from commlib.tools.report.document import Report, Row, write
from commlib.tools.report.formats import fold
from commlib.tools.report.view import View, grouped

INTERRUPTED_TEXT = "interrupted"
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # each asks a run to report what it has
PAGE = "page"  # the form that says where the rest is
AFTER_PEER_S = 0.2  # the end of a peer that Ctrl-C reached may be seen before our own Ctrl-C
STUCK_S = 1.5  # after Ctrl-C a rank that has not come out of a call waits in another library, maybe for ever
CLEAR = "\r\033[K"


class Progress:
    """One line on stderr, if that is a terminal: drawn over itself, and taken away before anything is printed."""

    def __init__(self, total: int, width: int, speaks: bool = True) -> None:
        self.total, self.width = total, width
        self._started = time.monotonic()
        self._speaks = speaks and sys.stderr.isatty()

    def show(self, done: int, what: str) -> None:
        spent_s = time.monotonic() - self._started
        left = f", {_clock(spent_s / done * (self.total - done))} left" if done else ""
        self._draw(f"{done}/{self.total} {_clock(spent_s)}{left}  {what}"[: self.width - 1])

    def clear(self) -> None:
        self._draw("")

    def _draw(self, text: str) -> None:
        if self._speaks:
            sys.stderr.write(CLEAR + text)
            sys.stderr.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


class Output:
    """Where a run prints and writes; ranks that do not speak print and write nothing."""

    def __init__(
        self,
        view: type[View],
        form: str = "table",
        path: Path | None = None,
        picture: Path | None = None,
        speaks: bool = True,
    ) -> None:
        self.view, self.form, self.path, self.picture, self.speaks = view, form, path, picture, speaks
        self.unread = False  # nobody reads what is printed, and there is no file
        self._report: Report | None = None
        self._series: Any = None  # the one that has its head
        self._head: list[str] = []  # what was printed before the rows

    def open(self, report: Report, parts: int) -> None:
        self._report = report
        self._shown = self.view(report.document(complete=False))
        self._progress = Progress(parts, self._shown.width, self.speaks)
        head = fold(self._shown.opening(), self._shown.width)
        self.say(head[len(self._head) :], ("table", PAGE))
        self._head = head

    def show(self, done: int, what: str) -> bool:
        """Say to a person how far the run is; return whether there is still somebody to measure for."""
        self._progress.show(done, what)
        return not self.unread

    def rows(self, rows: Sequence[Row]) -> None:
        view = self._shown
        for shown in grouped(rows, view.series):
            series = view.series(shown[0])
            self.say([*(view.head(shown) if series != self._series else []), *view.body(shown)])
            self._series = series

    def say(self, lines: Sequence[str], forms: Sequence[str] = ("table",)) -> None:
        """Print lines of these forms, unless another one is asked for."""
        if self.speaks and self.form in forms:
            self._progress.clear()
            self.unread |= not printed(lines) and self.path is None and self.picture is None

    def finish(self, ended: str) -> None:
        """Write the files, and print what stands below the rows, or the whole in another form."""
        if not self.speaks:
            return
        if self._report is not None:
            self._progress.clear()
        if self._report is None or not self._report.rows:
            if ended == INTERRUPTED_TEXT:
                self._warn("interrupted before anything was measured")
            return
        view = self.view(self._report.document(ended), self._shown.width)
        forms = [self.form, *self._write(view)]
        if self.form == PAGE:
            written = [f"# {path}" for path in (self.path, self.picture) if path]
            printed([*view.page_rest(), *(written or ["# every row: --format table; -o FILE.json keeps them"])])
        else:
            printed(view.ending() if self.form == "table" else [view.render(self.form)])
        if ended and "csv" in forms:  # has no place to say it
            self._warn(f"{ended}: not complete")

    def _write(self, view: View) -> Iterator[str]:
        """Write the files that were asked for, before stdout, whose reader may have gone; yield their forms."""
        if self.path is not None:
            form = self.path.suffix[1:]
            form = form if form in view.forms else "json"
            write(self.path, view.render(form))
            yield form
        if self.picture is not None:
            try:
                view.plot(self.picture)
            except (OSError, ValueError) as error:  # a picture is only an addition
                self._warn(f"no {self.picture.name}: {error}")

    def _warn(self, text: str) -> None:
        if self.speaks:
            sys.stderr.write(f"commlib: {text}\n")


def printed(lines: Sequence[str]) -> bool:
    """Print lines, and say whether somebody reads them: a run goes on to its files without a reader."""
    try:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered and what comes goes there
        return False
    return True


def until_it_ends(measure: Callable[[], None], finish: Callable[[str], None]) -> int:
    """Measure until the end, an error, Ctrl-C or SIGTERM, and report what there is; return 0, or 128 + signal."""
    ended, code, failure = "", 0, None
    with first_signal_interrupts():
        try:
            with _reported_when_stuck(finish):
                try:
                    measure()
                except CommError:
                    time.sleep(AFTER_PEER_S)
                    raise
        except KeyboardInterrupt as asked:
            ended, code = INTERRUPTED_TEXT, 128 + (*asked.args, signal.SIGINT)[0]
        except (CommError, RuntimeError) as error:
            ended, failure = str(error) or type(error).__name__, error
        _handle(signal.SIG_IGN, ENDS)  # another one would cut the report
        finish(ended)
    if failure is not None:
        raise failure
    return code


@contextmanager
def first_signal_interrupts() -> Iterator[None]:
    """Have the first signal that asks for the end raise KeyboardInterrupt, unless our parent ignores it (nohup)."""
    before = {number: signal.getsignal(number) for number in ENDS}

    def interrupt(number: int, _: object) -> None:
        _handle(signal.SIG_IGN, ENDS)
        raise KeyboardInterrupt(number)

    _handle(interrupt, (number for number in ENDS if before[number] is not signal.SIG_IGN))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handle(handler: Any, numbers: Iterable[signal.Signals]) -> None:
    for number in numbers:
        signal.signal(number, handler)


@contextmanager
def _reported_when_stuck(finish: Callable[[str], None]) -> Iterator[None]:
    """Report from another thread, and end, where a signal asks for it and no exception can end the main one's call."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    out = threading.Event()

    def watch() -> None:
        while heard := reader.recv(1):
            if heard[0] in ENDS and not out.wait(STUCK_S):
                try:
                    finish(INTERRUPTED_TEXT)
                finally:
                    os._exit(128 + heard[0])

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        out.set()
        signal.set_wakeup_fd(before)
        writer.close()  # the watcher reads the end
        watcher.join()
        reader.close()
