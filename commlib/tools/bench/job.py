"""What `commlib bench` was asked for, and the calls that makes; the same on every rank."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch

from commlib import env
from commlib.collectives import COLLECTIVES, Algorithm, Call, Collective
from commlib.collectives.reference import reducible
from commlib.communicator import Communicator
from commlib.counts import counted
from commlib.env import parse_bytes
from commlib.redops import dtype_named
from commlib.tools.baselines.peer import Peer
from commlib.tools.bench.messages import Window
from commlib.tools.timing import Protocol

BEST = "best"  # the baseline that is the fastest of the peers, call by call
PROBE_COUNT = 1 << 12  # elements at which a collective's bytes per element are read off its contract
MOST_SIZES = 1000
LARGEST = 1 << 40
WRITE = "write 16x7168 (rows x hidden), or bytes such as 64K; with a type, 16x7168:bf16"


@dataclass(frozen=True)
class Shape:
    """A size that was named by itself, for calls of some element types."""

    text: str  # 16x7168; "" of a number of bytes
    count: int  # elements
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return self.count * self.dtype.itemsize


@dataclass(frozen=True)
class Job:
    """What was asked for, the same on every rank."""

    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    redops: tuple[str, ...]
    root: int
    algorithms: tuple[str, ...]  # "all", "auto" (the plan's choice), and names
    params: Mapping[str, tuple[int, ...]]  # values that ours are measured with beside the plan's own
    peers: tuple[Peer, ...]
    baseline: str | None  # None: the first peer; "best": whoever is the fastest of them
    places: tuple[bool, ...]  # out of place is False
    backend: str
    plan: Path | None  # None: the one in force
    seconds: float
    protocol: Protocol
    auto: bool = False  # the peers of the device, before those named
    percentiles: bool = False  # the table shows them
    shapes: tuple[Shape, ...] = ()  # what was named in place of a range of sizes
    window: Window | None = None  # messages of send_recv in flight
    overlap: bool = False  # of asynchronous calls with what is computed beside them

    @property
    def mode(self) -> str:
        return "graph" if self.protocol.graph else "eager"


@contextmanager
def joined(job: Job) -> Iterator[Communicator]:
    """Join the other ranks, with room for the largest call."""
    import commlib

    room = None if env.MAX_BYTES.is_set() else max(env.MAX_BYTES.default, arena_bytes(job))
    with commlib.init(backend=job.backend, max_bytes=room, plan=job.plan or "auto") as comm:
        if not 0 <= job.root < comm.size:
            raise ValueError(f"--root {job.root} is no rank; the last one is {comm.size - 1}")
        if job.protocol.graph and comm.device.type != "cuda":
            raise ValueError(f"--graph needs GPUs; the ranks use {comm.device} (backend {comm.backend})")
        if job.window and (fault := job.window.fault(comm.size)):
            raise ValueError(fault)
        yield comm


def arena_bytes(job: Job) -> int:
    """Return the symmetric memory that the largest call's buffers take: a pair for each form, in rotation."""
    tensors = 2 * (False in job.places) + (True in job.places)
    return job.protocol.buffers * tensors * (max(job.sizes) + (1 << 16)) + (1 << 20)


def buffer_bytes(job: Job, ranks: int) -> int:
    """Return what each of so many ranks allocates: plain and symmetric buffers, and every rank's input to check."""
    messages = job.window.messages if job.window else 1
    return messages * (2 * arena_bytes(job) + (ranks + 1) * max(job.sizes))


# --- the sizes


def sweep(low: int, high: int, factor: float) -> tuple[int, ...]:
    """Return the sizes from low to high, each `factor` times the last: distinct whole bytes, the last one is high."""
    if high < low:
        raise ValueError(f"-e is {counted(high, 'byte')}, less than -b with {low}")
    sizes, exact = [low], float(low)
    while 0 < exact * factor < high:
        exact *= factor
        sizes.append(round(exact))
        if len(sizes) > MOST_SIZES:
            raise ValueError(f"-f {factor:g} makes more than {MOST_SIZES} sizes up to {high} bytes; use a larger")
    return tuple(dict.fromkeys([*sizes, high]))


def read_shapes(text: str, dtypes: Sequence[torch.dtype]) -> tuple[Shape, ...]:
    """Read 16x7168,64K:bf16; an item without a type is of each of `dtypes`."""
    return tuple(dict.fromkeys(shape for item in text.split(",") for shape in _shapes(item.strip(), dtypes)))


def _shapes(item: str, dtypes: Sequence[torch.dtype]) -> Iterator[Shape]:
    size, colon, name = item.partition(":")
    size = size.lower()
    try:
        if "x" in size and not re.fullmatch(r"\d+(x\d+)+", size):
            raise ValueError
        elements = prod(map(int, size.split("x"))) if "x" in size else None
        num_bytes = parse_bytes(size) if elements is None else 0
    except ValueError:
        raise ValueError(f"--sizes: {item!r} is no size; {WRITE}") from None
    for dtype in [dtype_named(name)] if colon else dtypes:
        count, rest = divmod(num_bytes, dtype.itemsize) if elements is None else (elements, 0)
        if rest:
            whole = f"whole number of {str(dtype).removeprefix('torch.')} elements, {dtype.itemsize} bytes each"
            raise ValueError(f"--sizes: {item!r} is no {whole}; {WRITE}")
        if not 0 < count <= LARGEST:
            raise ValueError(f"--sizes: {item!r} has {count} elements; {WRITE}")
        yield Shape("" if elements is None else size, count, dtype)


def rounded(job: Job) -> list[str]:
    """Return what is measured in place of sizes that are no whole number of elements: the sizes in bytes."""
    notes = []
    for dtype in job.dtypes:
        elements = {size: max(size // dtype.itemsize, 1) * dtype.itemsize for size in job.sizes}
        cut = [f"{whole} B in place of {size}" for size, whole in elements.items() if size != whole]
        if cut and not job.shapes:
            name, more = str(dtype).removeprefix("torch."), f" and {len(cut) - 3} more" if len(cut) > 3 else ""
            notes.append(f"sizes are whole elements of {name}: {', '.join(cut[:3])}{more}")
    return notes


# --- the calls


def series(job: Job) -> Iterator[tuple[Collective, torch.dtype, str]]:
    """Yield what sizes are measured of: collective, element type, and reduction ("sum" where there is none)."""
    for name, dtype in itertools.product(job.ops, job.dtypes):
        collective = job.window.collective() if job.window else COLLECTIVES[name]
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
        yield from ((collective, replace(call, count=count)) for count in sorted(_counts(job, collective, call)))


def shape_of(job: Job, collective: Collective, call: Call) -> str | None:
    return _counts(job, collective, replace(call, count=PROBE_COUNT)).get(call.count) or None


def _counts(job: Job, collective: Collective, probe: Call) -> dict[int, str]:
    per_element = collective.num_bytes(probe) / PROBE_COUNT
    if not per_element:
        return {0: ""}
    sizes = {shape.num_bytes: shape.text for shape in job.shapes if shape.dtype == probe.dtype}
    wanted = sizes or dict.fromkeys(job.sizes, "")
    return {collective.whole(max(1, int(size / per_element))): text for size, text in wanted.items()}


def forms(job: Job, collective: Collective) -> list[bool]:
    """Return those forms asked for that the collective has."""
    has = {False: collective.out_of_place, True: collective.in_place is not None}
    return [place for place in job.places if has[place]]


def combinations(job: Job, algorithm: Algorithm) -> list[dict[str, int]]:
    """Return the values of --params that the algorithm has and takes, each with each; none where it has none."""
    known = {param.name: param for param in algorithm.params}
    values = {
        name: [value for value in of_name if not known[name].fault(value)]
        for name, of_name in job.params.items()
        if name in known
    }
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())] if values else []
