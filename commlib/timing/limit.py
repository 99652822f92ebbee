"""What the machine allows at most: the memory or the link that every rank's data has to pass, measured at the start.

On shared memory a byte that a rank gives another is copied: read once, written once. An all_reduce of S bytes makes
each of n ranks read S bytes and write S bytes at least, which takes S / C where each rank copies C bytes a second
while all of them do. Bus bandwidth is 2 (n - 1) / n of S / t, so its ceiling is 2 (n - 1) / n of C; the ceilings of
the collectives that only move data are C, which is the same for two ranks. It is the ceiling of memory: tensors that
stay in the caches may pass it.

On GPUs the bus factors count what crosses the link of one GPU in one direction; the ceiling is the rate of that link.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from commlib.timing.candidate import Run

if TYPE_CHECKING:
    from commlib.communicator import Communicator

BUDGET_S = 0.25
COPY_BYTES = 64 << 20  # of a rank: more than its share of a cache
ALL_BYTES = 1 << 30  # of all ranks' buffers together
LINK_BYTES = 64 << 20
LINK_CALLS = 8


@dataclass(frozen=True)
class Limit:
    """The most that bus bandwidth (GB/s) can be and the least that a call can take; `what` says what was measured."""

    busbw: float | None
    latency_us: float | None
    what: str


def measure_limit(comm: Communicator, budget_s: float = BUDGET_S) -> Limit:
    """Measure the ceiling on all ranks at once; every rank calls it and gets the same."""
    if comm.size == 1:
        return Limit(None, None, "none: one rank has nobody to share memory or a link with")
    if comm.backend == "shm":
        return _memory(comm, budget_s)
    if comm.device.type == "cuda":
        return _link(comm, budget_s)
    return Limit(None, None, f"not measured: what carries the data of backend {comm.backend} is not known")


def _memory(comm: Communicator, budget_s: float) -> Limit:
    num_bytes = min(COPY_BYTES, ALL_BYTES // (2 * comm.size))
    source, target = (torch.ones(num_bytes, dtype=torch.uint8) for _ in range(2))
    # One thread, like an algorithm of ours; torch's copy_ may take several.
    copy = partial(ctypes.memmove, target.data_ptr(), source.data_ptr(), num_bytes)
    rate = num_bytes / _fastest(comm, copy, budget_s) / 1e9
    factor = 2 * (comm.size - 1) / comm.size
    times = "" if factor == 1 else f", times 2 (n - 1) / n = {factor:.3g}"
    copies = f"copies of {num_bytes >> 20} MiB by {comm.size} ranks at once, {rate:.1f} GB/s each{times}"
    return Limit(rate * factor, None, f"memory: {copies}; caches may pass it")


def _link(comm: Communicator, budget_s: float) -> Limit:
    data = torch.ones(LINK_BYTES, dtype=torch.uint8, device=comm.device)
    # Pairs of ranks, each in one direction only; a rank without partner looks on.
    peer, step = (comm.rank - 1, comm.recv) if comm.rank % 2 else (comm.rank + 1, comm.send)

    def send() -> None:
        for _ in range(LINK_CALLS if peer < comm.size else 0):
            step(data, peer)
        torch.cuda.synchronize(comm.device)

    rate = LINK_CALLS * LINK_BYTES / _fastest(comm, send, budget_s) / 1e9
    what = f"link: one-way copy of {LINK_BYTES >> 20} MiB to a peer, {LINK_CALLS} in a row, by NCCL's send and recv"
    return Limit(rate, None, what)


def _fastest(comm: Communicator, run: Run, budget_s: float) -> float:
    """Return the seconds of the best turn, each as long as its slowest rank: a ceiling is what was reached once."""
    run()  # memory nobody has touched, connections nobody has made
    deadline, best_s = time.perf_counter() + budget_s, float("inf")
    going = True
    while going:
        comm.barrier()
        start = time.perf_counter()
        run()
        turns = comm.all_gather_object((time.perf_counter() - start, time.perf_counter() < deadline))
        best_s = min(best_s, max(took for took, _ in turns))
        going = turns[0][1]  # rank 0's clock decides for all
    return best_s
