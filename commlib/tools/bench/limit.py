"""What the machine allows at most: the caches, the memory or the link that every rank's data has to pass.

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
COPY_BYTES = 64 << 20  # of a rank: more than its share of a cache
ALL_BYTES = 1 << 30  # of all ranks' buffers together
CLASSES = tuple(1 << bits for bits in range(16, 26, 2))  # 64 KiB to 16 MiB: what caches may hold
SETS = 3  # of buffers in turn, as in the protocol
TURN_BYTES = 4 << 20  # copied between two looks at the clock, or more
LINK_BYTES = 64 << 20
LINK_CALLS = 8


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
    most = min(COPY_BYTES, ALL_BYTES // (2 * comm.size))
    source, target = (torch.ones(most, dtype=torch.uint8) for _ in range(2))
    factor = 2 * (comm.size - 1) / comm.size
    sizes = [size for size in CLASSES if size * SETS <= most] + [most]
    found = []
    for size in sizes:
        turn = _copies(source, target, size)
        seconds = _fastest(comm, in_turn(*turn), budget_s / len(sizes))
        found.append((size, round(factor * size * len(turn) / seconds / 1e9, 4)))
    best, times = max(found, key=lambda of: of[1]), "" if factor == 1 else f", times 2 (n - 1) / n = {factor:.3g}"
    what = (
        f"memory: copies of {most >> 20} MiB by {counted(comm.size, 'rank')} at once{times}; out of caches up to "
        f"{best[1]:.1f} GB/s, at {best[0] >> 10} KiB"
    )
    return Limit(found[-1][1], None, what, found)


def _copies(source: torch.Tensor, target: torch.Tensor, size: int) -> Sequence[Run]:
    """Return copies of a size over several buffers in turn, on one thread, like an algorithm of ours."""
    sets = min(SETS, len(source) // size)
    places = [(target.data_ptr() + at * size, source.data_ptr() + at * size) for at in range(sets)]
    rounds = max(1, TURN_BYTES // (size * sets))
    return [partial(ctypes.memmove, *place, size) for place in places] * rounds


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
