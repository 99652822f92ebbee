"""The line that says how far a run is: a bar, the part under way, the time gone and left; for a person only."""

from __future__ import annotations

import sys
import time

BAR = (8, 24)  # characters
CLEAR = "\r\033[K"


class Progress:
    """One line on stderr, if that is a terminal: drawn over itself, and taken away before anything is printed."""

    def __init__(self, total: int, width: int, speaks: bool = True) -> None:
        self.total, self.width = total, width
        self._started = time.monotonic()
        self._speaks = speaks and sys.stderr.isatty()

    def show(self, done: int, what: str) -> None:
        self._draw(line(done, self.total, what, time.monotonic() - self._started, self.width))

    def clear(self) -> None:
        self._draw("")

    def _draw(self, text: str) -> None:
        if self._speaks:
            sys.stderr.write(CLEAR + text)
            sys.stderr.flush()


def line(done: int, total: int, what: str, spent_s: float, width: int) -> str:
    """Return the line, narrower than the terminal: the bar gives way first, then the name of the part."""
    left = f", {_clock(spent_s / done * (total - done))} left" if done else ""
    figures = f"{done}/{total} {_clock(spent_s)}{left}"
    bar = min(BAR[1], width - 1 - len(figures) - len(what) - 5)
    if bar >= BAR[0]:
        filled = bar * done // max(total, 1)
        return f"[{'#' * filled}{'.' * (bar - filled)}] {figures}  {what}"
    return f"{figures}  {what}"[: width - 1]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
