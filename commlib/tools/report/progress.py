"""The line that says how far a run is: a bar, the part under way, the time gone and left; for a person only."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

BAR = (8, 24)  # characters
CLEAR = "\r\033[K"


class Progress:
    """One line on stderr, if that is a terminal: drawn over itself, and taken away before anything is printed."""

    def __init__(self, total: int, width: int, speaks: bool = True, seconds: Sequence[float] = ()) -> None:
        """Parts that take different times say about how many seconds each takes."""
        self.total, self.width, self._seconds = total, width, seconds
        self._started = time.monotonic()
        self._begun = (0, 0.0)  # the part under way, and when it began
        self._speaks = speaks and sys.stderr.isatty()

    def show(self, done: int, what: str) -> None:
        """Say that so many parts are done, and which one is under way."""
        spent_s = time.monotonic() - self._started
        if done != self._begun[0]:
            self._begun = done, spent_s
        left_s = remaining_s(self._seconds, self._begun, spent_s) if self._seconds else None
        self._draw(line(done, self.total, what, spent_s, self.width, left_s))

    def clear(self) -> None:
        """Take the line away."""
        self._draw("")

    def _draw(self, text: str) -> None:
        if self._speaks:
            sys.stderr.write(CLEAR + text)
            sys.stderr.flush()


def remaining_s(seconds: Sequence[float], begun: tuple[int, float], spent_s: float) -> float:
    """Return about how long the rest takes, by what the parts are said to take and what those done did take."""
    done, before_s = begun
    pace = before_s / sum(seconds[:done]) if done else 1.0
    under_way_s = max(pace * seconds[done] - (spent_s - before_s), 0.0)
    return under_way_s + pace * sum(seconds[done + 1 :])


def line(done: int, total: int, what: str, spent_s: float, width: int, left_s: float | None = None) -> str:
    """Return the line, narrower than the terminal: the bar gives way first, then the name of the part."""
    if left_s is None and done:
        left_s = spent_s / done * (total - done)
    left = "" if left_s is None else f", {_clock(left_s)} left"
    figures = f"{done}/{total} {_clock(spent_s)}{left}"
    bar = min(BAR[1], width - 1 - len(figures) - len(what) - 5)
    if bar >= BAR[0]:
        filled = bar * done // max(total, 1)
        return f"[{'#' * filled}{'.' * (bar - filled)}] {figures}  {what}"
    return f"{figures}  {what}"[: width - 1]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
