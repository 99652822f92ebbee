"""The line that says how far a run is: the part under way, the time gone and left; for a person only."""

from __future__ import annotations

import sys
import time

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
