"""What a backend is told at start: its algorithms, by name, as their rows say it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch

from commlib.backends.algorithm import Algorithm
from commlib.collectives.reference import reducible
from commlib.collectives.spec import Collective
from commlib.redops import DTYPES, REDOPS


@cache
def refusal(collective: Collective, algorithm: Algorithm, dtype: str, redop: str, size: int) -> str | None:
    """Say why an algorithm does not run calls of a type and a reduction on so many ranks, or None."""
    element: torch.dtype = getattr(torch, dtype)
    if collective.reduces and not reducible(element, redop):
        return f"there is no {redop} of {dtype}"
    if size == 1 and not collective.reduces:
        return None  # a copy
    return algorithm.refuses(element, redop, size)


def serves(collective: Collective, algorithm: Algorithm, dtype: str, redop: str, size: int) -> bool:
    """Whether an algorithm runs such calls."""
    return refusal(collective, algorithm, dtype, redop, size) is None


def lines_of(collective: Collective, algorithm: Algorithm, size: int) -> Iterator[str]:
    """Yield the lines of a row as csrc/plan/row.cc reads them."""
    facts = {
        "arena": algorithm.needs_arena,
        "kernel": bool(algorithm.kernel),
        "reduces": collective.reduces,
        "rooted": collective.rooted,
    }
    told = " ".join(f"{name}={'yes' if fact else 'no'}" for name, fact in facts.items())
    yield f"algorithm op={collective.name} name={algorithm.name} placement={algorithm.placement} {told}"
    for dtype, redop in _reductions(collective, algorithm, size):
        yield f"serves dtype={dtype} redop={redop}"
    for param in algorithm.params:
        yield f"param name={param.name} default={param.default}"


def _reductions(collective: Collective, algorithm: Algorithm, size: int) -> Iterator[tuple[str, str]]:
    """Yield what it serves; what only moves, serves every type or none."""
    if not collective.reduces:
        if serves(collective, algorithm, DTYPES[0], REDOPS[0], size):
            yield "*", "*"
        return
    for dtype in DTYPES:
        for redop in REDOPS:
            if serves(collective, algorithm, dtype, redop, size):
                yield dtype, redop
