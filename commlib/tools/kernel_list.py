"""Which GPU kernels the algorithms have: what `commlib build` compiles ahead of the first call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

import torch

from commlib.build.device_code import ELEMENTS, Kernel, compile_kernel, expression, row_expression
from commlib.collectives import COLLECTIVES
from commlib.collectives.spec import Algorithm
from commlib.errors import BuildFailed
from commlib.redops import REDOPS

PAIR_BYTES = 512 * 16  # that the threads of a row hold: csrc/include/commlib/rows.h
MAX_COLUMNS, TILE_BYTES = 1 << 14, 1 << 14  # of a row: row_call.h, job.h


def kernels(
    worlds: Iterable[int], dtypes: Iterable[str] = tuple(ELEMENTS), redops: Iterable[str] = REDOPS
) -> list[tuple[str, str]]:
    """Return (source, expression) of every kernel that calls of these worlds, types and reductions can need."""
    calls = [(dtype, redop, world) for world in worlds for dtype in dtypes for redop in redops]
    listed: dict[tuple[str, str], None] = {}
    for collective in COLLECTIVES.values():
        for algorithm in collective.algorithms:
            for dtype, redop, world in calls if algorithm.kernel else ():
                if collective.refusal(algorithm, dtype, redop, world) is None:
                    instances = (
                        _of_rows(algorithm, world, dtype)
                        if collective.of_rows
                        else [expression(algorithm.name, world, *((dtype, redop) if collective.reduces else ()))]
                    )
                    listed.update(((algorithm.source, instance), None) for instance in instances)
    return list(listed)


def _of_rows(algorithm: Algorithm, world: int, dtype: str) -> Iterator[str]:
    """Yield the instances for the norm of most models, one for each length of rows; others are compiled when called."""
    in_tiles = any(param.name == "tile_bytes" for param in algorithm.params)
    row_bytes = TILE_BYTES if in_tiles else MAX_COLUMNS * getattr(torch, dtype).itemsize
    ranks = 1 if algorithm.composed else world
    for pairs in (1, 2, 4, 8) if world > 1 or algorithm.composed else ():
        if pairs == 1 or pairs * PAIR_BYTES <= row_bytes:
            form = f"world={ranks} pairs={pairs} weight={dtype} center=no quant=none"
            yield row_expression(algorithm.name, dtype, form)


class Request(NamedTuple):
    """What to compile: the arguments of compile_kernel."""

    source: str
    expression: str
    arch: str
    more: str = ""
    marked: bool = False


def compile_many(requests: Iterable[Request], jobs: int) -> Iterator[tuple[Request, Kernel | BuildFailed]]:
    """Compile in `jobs` threads; yield each request, when it is done, with its kernel or what went wrong."""
    pool = ThreadPoolExecutor(jobs)
    try:
        futures = {pool.submit(compile_kernel, *request): request for request in requests}
        for future in as_completed(futures):
            error = future.exception()
            yield futures[future], error if isinstance(error, BuildFailed) else future.result()
    finally:
        pool.shutdown(cancel_futures=True)
