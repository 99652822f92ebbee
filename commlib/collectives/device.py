"""Which GPU kernels there are: each algorithm of the tables that has a csrc/collectives/<collective>/<name>.cu."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from commlib.collectives import COLLECTIVES
from commlib.collectives.reference import reducible
from commlib.device import ELEMENTS, expression, source_of
from commlib.redops import REDOPS


def kernels(
    worlds: Iterable[int], dtypes: Iterable[str] = tuple(ELEMENTS), redops: Iterable[str] = REDOPS
) -> list[tuple[str, str]]:
    """Return (source, expression) of every kernel that calls of these worlds, types and reductions can need."""
    calls = [(dtype, redop, world) for world in worlds for dtype in dtypes for redop in redops]
    found: dict[tuple[str, str], None] = {}
    for name, collective in COLLECTIVES.items():
        for algorithm in collective.algorithms:
            source = source_of(name, algorithm.name) if algorithm.backend == "nccl" else None
            for dtype, redop, world in calls if source else ():
                element = getattr(torch, dtype)
                undefined = collective.reduces and not reducible(element, redop)
                if source and not undefined and not algorithm.refuses(element, redop, world):
                    keys = (dtype, redop) if collective.reduces else ()
                    found[source, expression(algorithm.name, world, *keys)] = None
    return list(found)
