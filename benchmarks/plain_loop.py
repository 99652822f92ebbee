"""A plain loop as an independent check of `commlib bench`: the same calls, timed with nothing but a clock around them.

    python benchmarks/plain_loop.py --backend shm -o benchmarks/results/plain_loop_shm.json
    python benchmarks/plain_loop.py --backend torch

Both take turns on live ranks of one job: a block of the loop, then one of the protocol's, and so on.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
from written import command_line, head, write

from commlib.collectives import COLLECTIVES, Call
from commlib.collectives.reference import ordered
from commlib.communicator import Communicator
from commlib.tools.testing import Ranks
from commlib.tools.timing import Candidate, Protocol, measure, public_call

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24)
TURNS = 15
BLOCK_S = 20e-3  # long against the ranks' distance behind a barrier


def compare(comm: Communicator, num_bytes: int) -> tuple[float, float]:
    """Return seconds per call as the loop and as the protocol has them, on the slowest rank."""
    x = [torch.ones(num_bytes // 4) for _ in range(3)]
    calls = max(3, int(BLOCK_S / _loop(comm, x, 10)))
    call = Call(comm.rank, comm.size, num_bytes // 4, torch.float32)
    candidate = Candidate("ours", public_call(comm, COLLECTIVES["all_reduce"]), in_place=True)
    protocol = Protocol(block_s=BLOCK_S, blocks=(3, 3), budget_s=0.0, check=False)
    loop, ours = [], []
    for _ in range(TURNS):
        loop.append(_loop(comm, x, calls))
        (found,) = measure(comm, COLLECTIVES["all_reduce"], call, ordered, [candidate], protocol)
        ours.append(found.median_s)
    return statistics.median(loop), statistics.median(ours)


def _loop(comm: Communicator, buffers: list[torch.Tensor], calls: int) -> float:
    for x in buffers:
        x.fill_(1.0)
    comm.all_reduce(buffers[0])  # the code and the flags into the caches
    comm.barrier()
    start = time.perf_counter()
    for at in range(calls):
        comm.all_reduce(buffers[at % 3])
    return max(comm.all_gather_object((time.perf_counter() - start) / calls))


def main() -> int:
    """Measure, print the ratios and write them."""
    parser = command_line(__doc__)
    parser.add_argument("--backend", choices=["shm", "torch"], default="shm")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with Ranks(options.ranks, backend=options.backend, timeout_s=60.0, deadline_s=300.0) as ranks:
        for num_bytes in SIZES:
            loop_us, ours_us = (seconds * 1e6 for seconds in ranks.run(compare, num_bytes)[0])
            rows.append({"bytes": num_bytes, "loop_us": loop_us, "ours_us": ours_us, "ratio": ours_us / loop_us})
            print(f"{num_bytes:>10} B  loop {loop_us:9.2f} us  ours {ours_us:9.2f} us  {ours_us / loop_us:.3f}")
    write(options.output, {**head("plain_loop", options.ranks, options.backend), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
