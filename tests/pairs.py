"""Cases in which every two values of two parameters meet, where their full product would prove no more."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any


def pairwise(*choices: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return few rows of one value each, so that each two values of different columns share a row."""
    columns: list[Sequence[Any]] = [list(values) for values in choices]
    rows = list(product(*map(range, map(len, columns))))
    pairs = {row: {(a, b, row[a], row[b]) for a, b in combinations(range(len(columns)), 2)} for row in rows}
    missing, found = set().union(*pairs.values()), []
    while missing:
        best = max(rows, key=lambda row: len(pairs[row] & missing))
        missing -= pairs[best]
        found.append(tuple(column[at] for column, at in zip(columns, best, strict=True)))
    return found
