"""What `commlib bench` was asked for, and the calls that makes; the same on every rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from commlib import env
from commlib.collectives import COLLECTIVES, Call, Collective
from commlib.collectives.reference import reducible
from commlib.communicator import Communicator
from commlib.counts import counted
from commlib.tools.baselines.peer import Peer
from commlib.tools.timing import Protocol

PROBE_COUNT = 1 << 12  # elements at which a collective's bytes per element are read off its contract
MAX_SIZES = 1000


@dataclass(frozen=True)
class Job:
    """What was asked for, the same on every rank."""

    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    redops: tuple[str, ...]
    root: int
    algorithms: tuple[str, ...]  # "all", "auto" (the plan's choice), and names
    peers: tuple[Peer, ...]
    auto: bool  # the peers of the device, before those named
    places: tuple[bool, ...]  # out of place is False
    backend: str
    seconds: float
    protocol: Protocol

    @property
    def mode(self) -> Literal["eager", "graph"]:
        return "graph" if self.protocol.graph else "eager"

    def arena_bytes(self) -> int:
        """Return the symmetric memory that the largest call's buffers take: a pair for each form, in rotation."""
        tensors = 2 * (False in self.places) + (True in self.places)
        return self.protocol.buffers * tensors * (max(self.sizes) + (1 << 16)) + (1 << 20)

    def buffer_bytes(self, ranks: int) -> int:
        """Return what each of so many ranks allocates: plain and symmetric buffers, and every rank's input to check."""
        return 2 * self.arena_bytes() + (ranks + 1) * max(self.sizes)


@contextmanager
def joined(job: Job) -> Iterator[Communicator]:
    """Join the other ranks, with room for the largest call."""
    import commlib

    room = None if env.MAX_BYTES.is_set() else max(env.MAX_BYTES.default, job.arena_bytes())
    with commlib.init(backend=job.backend, max_bytes=room) as comm:
        if not 0 <= job.root < comm.size:
            raise ValueError(f"--root {job.root} is no rank; the last one is {comm.size - 1}")
        if job.protocol.graph and comm.device.type != "cuda":
            raise ValueError(f"--graph needs GPUs; the ranks use {comm.device} (backend {comm.backend})")
        yield comm


def sweep(low: int, high: int, factor: float) -> tuple[int, ...]:
    """Return the sizes from low to high, each `factor` times the last: distinct whole bytes, the last one is high."""
    if high < low:
        raise ValueError(f"-e is {counted(high, 'byte')}, less than -b with {low}")
    sizes, exact = [low], float(low)
    while 0 < exact * factor < high:
        exact *= factor
        sizes.append(round(exact))
        if len(sizes) > MAX_SIZES:
            raise ValueError(f"-f {factor:g} makes more than {MAX_SIZES} sizes up to {high} bytes; use a larger")
    return tuple(dict.fromkeys([*sizes, high]))


def series(job: Job) -> Iterator[tuple[Collective, torch.dtype, str]]:
    """Yield what sizes are measured of: collective, element type, and reduction ("sum" where there is none)."""
    for collective, dtype in itertools.product(map(COLLECTIVES.__getitem__, job.ops), job.dtypes):
        for redop in job.redops if collective.reduces else ("sum",):
            if forms(job, collective) and (reducible(dtype, redop) or not collective.reduces):
                yield collective, dtype, redop


def left_out(job: Job) -> list[str]:
    """Return what was asked for and exists on no backend: reductions of some types, forms of some collectives."""
    reducing = any(COLLECTIVES[name].reduces for name in job.ops)
    every = itertools.product(job.redops if reducing else (), job.dtypes)
    pairs = ((redop, dtype) for redop, dtype in every if not reducible(dtype, redop))
    undefined = [f"{redop} of {str(dtype).removeprefix('torch.')} is not defined" for redop, dtype in pairs]
    form = "in-place" if job.places == (True,) else "out-of-place"
    return undefined + [f"{op} has no {form} form" for op in job.ops if not forms(job, COLLECTIVES[op])]


def calls(comm: Communicator, job: Job) -> Iterator[tuple[Collective, Call]]:
    """Yield what is measured, size by size: the counts that come closest from below; one where there is no data."""
    for collective, dtype, redop in series(job):
        call = Call(comm.rank, comm.size, PROBE_COUNT, dtype, redop, job.root)
        per_element = collective.num_bytes(call) / PROBE_COUNT
        counts = {collective.whole(max(1, int(size / per_element))) for size in job.sizes} if per_element else {0}
        yield from ((collective, replace(call, count=count)) for count in sorted(counts))


def facts(collective: Collective, call: Call) -> dict[str, Any]:
    """Return what documents have of a call."""
    return {
        "op": collective.name,
        "size": collective.num_bytes(call),
        "count": call.count,
        "type": str(call.dtype).removeprefix("torch."),
        "redop": call.redop if collective.reduces else None,
        "root": call.root if collective.rooted else None,
    }


def forms(job: Job, collective: Collective) -> list[bool]:
    """Return those forms asked for that the collective has."""
    has = {False: collective.out_of_place, True: collective.has_in_place}
    return [place for place in job.places if has[place]]
