"""Which GPU kernels there are: those of each algorithm of the tables that is device code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from commlib.collectives import COLLECTIVES
from commlib.collectives.spec import Algorithm
from commlib.device import ELEMENTS, expression, row_expression
from commlib.redops import REDOPS

PAIR_BYTES = 512 * 16  # that the threads of a row hold: csrc/include/commlib/rows.h
MOST_COLUMNS, TILE_BYTES = 1 << 14, 1 << 14  # of a row: row_call.h, job.h


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
                    instances = (
                        _of_rows(algorithm, world, dtype)
                        if collective.of_rows
                        else [expression(algorithm.name, world, *((dtype, redop) if collective.reduces else ()))]
                    )
                    found.update(((algorithm.source, instance), None) for instance in instances)
    return list(found)


def _of_rows(algorithm: Algorithm, world: int, dtype: str) -> Iterator[str]:
    """Yield the instances for the norm of most models, one for each length of rows; others are compiled when called."""
    in_tiles = any(param.name == "tile_bytes" for param in algorithm.params)
    most = TILE_BYTES if in_tiles else MOST_COLUMNS * getattr(torch, dtype).itemsize
    ranks = 1 if algorithm.composed else world
    for pairs in (1, 2, 4, 8) if world > 1 or algorithm.composed else ():
        if pairs == 1 or pairs * PAIR_BYTES <= most:
            form = f"world={ranks} pairs={pairs} weight={dtype} center=no quant=none"
            yield row_expression(algorithm.name, dtype, form)
