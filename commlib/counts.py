"""Counts as texts: '1 rank', '2 ranks'."""

from __future__ import annotations


def counted(number: int | str, noun: str, many: str = "") -> str:
    """Return a number, or a list of some, with its noun; `many` is the plural of one that takes more than an s."""
    return f"{number} {noun if str(number) == '1' else many or f'{noun}s'}"
