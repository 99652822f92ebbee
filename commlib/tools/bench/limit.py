"""The largest possible bus bandwidth here: what the memory or the link carries that every rank's data has to pass.

On shared memory a byte that a rank gives another is copied: read once, written once. An all_reduce of S bytes makes
each of n ranks read S bytes and write S bytes at least, which takes S / C where each rank copies C bytes a second
while all of them do. Bus bandwidth is 2 (n - 1) / n of S / t, so its ceiling is 2 (n - 1) / n of C; the ceilings of
the collectives that only move data are C, which is the same for two ranks. C depends on what the caches hold, so it is
measured for copies of several sizes, each over as many buffers in turn as a call is timed on.

On GPUs the bus factors count what crosses the link of one GPU in one direction; the ceiling is the rate of that link.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from functools import partial

import torch

from commlib.communicator import Communicator
from commlib.counts import counted
from commlib.tools.baselines.peer import in_turn
from commlib.tools.bench.result import Limit
from commlib.tools.timing import Run

BUDGET_S = 0.25
MAX_BYTES = 64 << 20  # that a rank copies: more than its share of a cache
ALL_BYTES = 1 << 30  # of all ranks' buffers together
CLASSES = tuple(1 << bits for bits in range(16, 26, 2))  # 64 KiB to 16 MiB: what caches may hold
SETS = 3  # of buffers in turn, as in the protocol
TURN_BYTES = 4 << 20  # copied between two looks at the clock, or more
LINK_CALLS = 8


def measure_limit(comm: Communicator, budget_s: float = BUDGET_S) -> Limit:
    """Measure the ceiling on all ranks at once; every rank calls it and gets the same."""
    if comm.size == 1:
        return Limit(None, "none: one rank has nobody to share memory or a link with")
    if comm.backend != "shm" and comm.device.type != "cuda":
        return Limit(None, f"not measured: what carries the data of backend {comm.backend} is not known")
    num_bytes = min(MAX_BYTES, ALL_BYTES // (2 * comm.size))
    source, target = (torch.ones(num_bytes, dtype=torch.uint8, device=comm.device) for _ in range(2))
    if comm.backend != "shm":
        rate = LINK_CALLS * num_bytes / _fastest(comm, lambda: _send(comm, source), budget_s) / 1e9
        what = f"link: one-way copy of {num_bytes >> 20} MiB to a peer, {LINK_CALLS} in a row, by NCCL's send and recv"
        return Limit(rate, what)
    factor, by_size = 2 * (comm.size - 1) / comm.size, list[tuple[float, float]]()
    sizes = [size for size in CLASSES if size * SETS <= num_bytes] + [num_bytes]
    for size in sizes:
        calls = _copies(source, target, size)
        seconds = _fastest(comm, in_turn(*calls), budget_s / len(sizes))
        by_size.append((size, round(factor * size * len(calls) / seconds / 1e9, 4)))
    copies = f"memory: copies of {num_bytes >> 20} MiB by {counted(comm.size, 'rank')} at once"
    return Limit(by_size[-1][1], copies if factor == 1 else f"{copies}, times {factor:.3g}", by_size)


def _copies(source: torch.Tensor, target: torch.Tensor, size: int) -> Sequence[Run]:
    """Return copies of a size over several buffers in turn, on one thread, like an algorithm of ours."""
    starts = [at * size for at in range(min(SETS, len(source) // size))]
    places = [(target.data_ptr() + start, source.data_ptr() + start) for start in starts]
    return [partial(ctypes.memmove, *place, size) for place in places] * max(1, TURN_BYTES // (size * len(starts)))


def _send(comm: Communicator, data: torch.Tensor) -> None:
    """Send in pairs of ranks, each in one direction only; a rank without partner does nothing."""
    peer, step = (comm.rank - 1, comm.recv) if comm.rank % 2 else (comm.rank + 1, comm.send)
    for _ in range(LINK_CALLS if peer < comm.size else 0):
        step(data, peer)
    torch.cuda.synchronize(comm.device)


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
