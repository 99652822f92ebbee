"""What each rank runs under one MPI's launcher: ours, MPI and gloo, interleaved block by block in this process."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mpi_peer import Mpi
from placement import Probe

import commlib
from commlib.bootstrap.world import SingleWorld
from commlib.collectives import COLLECTIVES, Call, Collective
from commlib.collectives.reference import ordered
from commlib.communicator import Communicator
from commlib.peers.torch import CALLS, Torch
from commlib.timing import Candidate, Measurement, Protocol, cpu_share, measure, public_call

K, M = 1 << 10, 1 << 20
SIZES = (8, 64, 512, 4 * K, 32 * K, 64 * K, 256 * K, M, 2 * M, 16 * M, 64 * M)
FEWER = (8, 512, 4 * K, 64 * K, M, 16 * M, 64 * M)
# (collective, element type, in place, sizes); what one row of the report's tables is made of.
SERIES: tuple[tuple[str, torch.dtype, bool, tuple[int, ...]], ...] = (
    ("all_reduce", torch.float32, True, SIZES),
    ("all_reduce", torch.float32, False, SIZES),
    ("all_reduce", torch.bfloat16, True, FEWER),
    ("all_gather", torch.float32, False, FEWER),
    ("reduce_scatter", torch.float32, False, FEWER),
    ("broadcast", torch.float32, True, FEWER),
    ("all_to_all", torch.float32, False, FEWER),
    ("barrier", torch.float32, False, (0,)),
)
ARENA_BYTES = 416 * M  # three pairs of 64 MiB buffers
LATE_S = 0.05
GIVE_UP_S = 0.5  # who takes longer at one size is not asked for larger ones
Row = dict[str, Any]


def main() -> None:
    """Measure everything and write rank 0's report."""
    options = _options()
    # Nothing else may load MPI first: its thread level is chosen then.
    comm = commlib.init(bootstrap="mpi", backend="shm", max_bytes=ARENA_BYTES)
    torch.set_num_threads(1)
    mpi = Mpi()
    torch_distributed = Torch()
    torch_distributed.start(comm, graph=False)
    probe = Probe(comm)
    rows = list(_all_rows(comm, mpi, options, probe if _has_cores(comm) else None))
    report = {
        "mpi": f"{mpi.name} {mpi.version}",
        "thread_level": mpi.thread_level,
        "rows": rows,
        "world_of_one_us": _world_of_one(comm, mpi),
        "waiting_cpu_share": _waiting(comm, mpi),
    }
    if comm.rank == 0:
        options.output.write_text(json.dumps(report))
    torch_distributed.stop()
    comm.close()


def _options() -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--max-bytes", type=int, default=SIZES[-1])
    parser.add_argument("--ops", default="")
    return parser.parse_args()


def _has_cores(comm: Communicator) -> bool:
    """Passing a flag back and forth needs every rank on a core of its own."""
    return comm.size > 1 and all(comm.all_gather_object(comm.size <= (os.cpu_count() or 1)))


def _all_rows(comm: Communicator, mpi: Mpi, options: Any, probe: Probe | None) -> Iterator[Row]:
    cases = [
        (name, dtype, in_place, size)
        for name, dtype, in_place, sizes in SERIES
        for size in sizes
        if size <= options.max_bytes and (not options.ops or name in options.ops.split(","))
    ]
    deadline, given_up = time.monotonic() + options.seconds, set()
    for done, (name, dtype, in_place, size) in enumerate(cases):
        left_s = comm.broadcast_object(deadline - time.monotonic(), 0)
        protocol = Protocol(blocks=(3, 41), budget_s=max(0.0, left_s / (len(cases) - done)))
        collective = COLLECTIVES[name]
        call = _call(collective, comm, dtype, size)
        series = (name, dtype, in_place)
        candidates = [c for c in _candidates(comm, mpi, collective, in_place) if (c.label, series) not in given_up]
        # A hypervisor moves cores within seconds: each row has the placement before and after it.
        before = probe.one_way_ns() if probe else None
        results = measure(comm, collective, call, ordered, candidates, protocol)
        flags = [round(before), round(probe.one_way_ns())] if probe and before else []
        given_up |= {(r.label, series) for r in results if r.times_s and r.median_s > GIVE_UP_S}
        yield from ({**_row(collective, call, in_place, result), "flag_ns": flags} for result in results)


def _call(collective: Collective, comm: Communicator, dtype: torch.dtype, size: int) -> Call:
    """Return the call of about so many bytes, as nccl-tests counts them."""
    one = Call(comm.rank, comm.size, 1, dtype)
    return Call(comm.rank, comm.size, max(1, size // (collective.num_bytes(one) or 1)) if size else 0, dtype)


def _candidates(comm: Communicator, mpi: Mpi, collective: Collective, in_place: bool) -> list[Candidate]:
    ours = public_call(comm, collective)
    candidates = [
        Candidate("ours", ours, in_place),
        mpi.candidate(collective, in_place),
        Candidate("torch", Torch().prepare(collective, in_place), in_place),
    ]
    if any(a.placement == "symmetric" for a in collective.algorithms):
        candidates.append(Candidate("symmetric", ours, in_place, empty=lambda n, dtype: comm.empty((n,), dtype)))
    return candidates


def _row(collective: Collective, call: Call, in_place: bool, result: Measurement) -> Row:
    row: Row = {
        "op": collective.name,
        "dtype": str(call.dtype).removeprefix("torch."),
        "bytes": collective.num_bytes(call),
        "in_place": in_place,
        "candidate": result.label,
        "wrong": result.wrong,
    }
    if result.skipped:
        return {**row, "skipped": result.skipped}
    times = {f"p{p}_us": round(result.percentile_s(p) * 1e6, 4) for p in (10, 50, 90)}
    return {**row, **times, "iterations": result.iterations, "blocks": len(result.times_s)}


def _world_of_one(comm: Communicator, mpi: Mpi) -> dict[str, float]:
    """Return what an 8-byte all_reduce costs when there is nobody to talk to: dispatch alone."""
    found: dict[str, float] = {}
    if comm.rank == 0:
        collective = COLLECTIVES["all_reduce"]
        with Communicator.create(SingleWorld(), backend="shm") as solo:
            candidates = [
                Candidate("ours", public_call(solo, collective), in_place=True),
                mpi.candidate(collective, in_place=True, world=mpi.mpi.COMM_SELF),
            ]
            results = measure(solo, collective, Call(0, 1, 2, torch.float32), ordered, candidates)
            found = {result.label: round(result.median_s * 1e6, 4) for result in results}
    comm.barrier()
    return found


def _waiting(comm: Communicator, mpi: Mpi) -> dict[str, float]:
    """Return the share of a core that ranks use while they wait for the last one, 50 ms late, in a barrier."""
    barriers: dict[str, Callable[[], object]] = {
        "ours": comm.barrier,
        "mpi": mpi.world.Barrier,
        "torch": CALLS["barrier"](torch.empty(0), torch.empty(0), None),
    }
    return {name: _share(comm, barrier) for name, barrier in barriers.items()} if comm.size > 1 else {}


def _share(comm: Communicator, barrier: Callable[[], object]) -> float:
    late = comm.rank == comm.size - 1
    shares = []
    for _ in range(5):
        comm.barrier()
        if late:
            time.sleep(LATE_S)
        share = cpu_share(partial(barrier))
        everyone = comm.all_gather_object(share)
        shares.append(max(everyone[:-1]))
    return round(statistics.median(shares), 4)


if __name__ == "__main__":
    main()
