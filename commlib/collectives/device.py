"""Which GPU kernels there are: those of each algorithm of the tables that is device code."""

from __future__ import annotations

from collections.abc import Iterable

from commlib.collectives import COLLECTIVES
from commlib.device import ELEMENTS, expression
from commlib.redops import REDOPS


def kernels(
    worlds: Iterable[int], dtypes: Iterable[str] = tuple(ELEMENTS), redops: Iterable[str] = REDOPS
) -> list[tuple[str, str]]:
    """Return (source, expression) of every kernel that calls of these worlds, types and reductions can need."""
    calls = [(dtype, redop, world) for world in worlds for dtype in dtypes for redop in redops]
    found: dict[tuple[str, str], None] = {}
    for collective in COLLECTIVES.values():
        for algorithm in collective.algorithms:
            for dtype, redop, world in calls if algorithm.kernel else ():
                if collective.refusal(algorithm, dtype, redop, world) is None:
                    keys = (dtype, redop) if collective.reduces else ()
                    found[algorithm.source, expression(algorithm.name, world, *keys)] = None
    return list(found)
