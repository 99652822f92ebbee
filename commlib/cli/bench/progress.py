"""The line that says how far a run is: a bar, the call under way, the time gone and left; for a person only."""

from __future__ import annotations

import sys
import time

import click

BAR = (8, 24)  # characters
CLEAR = "\r\033[K"


class Progress:
    """One line on stderr, if that is a terminal: drawn over itself, and taken away before anything is printed."""

    def __init__(self, total: int, width: int, speaks: bool = True) -> None:
        self.total, self.width = total, width
        self.done = 0
        self._started = time.monotonic()
        self._speaks = speaks and sys.stderr.isatty()

    def show(self, done: int, what: str) -> None:
        """Say that so many calls are done, and which one is under way."""
        self.done = done
        if self._speaks:
            spent_s = time.monotonic() - self._started
            click.echo(CLEAR + line(done, self.total, what, spent_s, self.width), err=True, nl=False)

    def clear(self) -> None:
        """Take the line away."""
        if self._speaks:
            click.echo(CLEAR, err=True, nl=False)


def line(done: int, total: int, what: str, spent_s: float, width: int) -> str:
    """Return the line, narrower than the terminal: the bar gives way first, then the name of the call."""
    left = f", {_clock(spent_s / done * (total - done))} left" if done else ""
    figures = f"{done}/{total} {_clock(spent_s)}{left}"
    room = width - 1 - len(figures)
    bar = min(BAR[1], room - len(what) - 5)
    if bar >= BAR[0]:
        filled = bar * done // max(total, 1)
        return f"[{'#' * filled}{'.' * (bar - filled)}] {figures}  {what}"
    return f"{figures}  {what}"[: width - 1]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
