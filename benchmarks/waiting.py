"""How much of a core a rank uses while it waits 50 ms for the last one, in barriers of ours, of MPI and of torch.

commlib run -n 2 python benchmarks/waiting.py -o waiting.json        # or mpirun, for MPI's
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from written import command_line, head, write

import commlib
from commlib.collectives import COLLECTIVES, Call
from commlib.communicator import Communicator
from commlib.tools.baselines import load
from commlib.tools.timing import Run

LATE_S, TURNS = 0.05, 5


def barriers(comm: Communicator) -> dict[str, Run]:
    """Return the barrier of each library that is here."""
    found: dict[str, Run] = {"ours": comm.barrier}
    nothing = torch.empty(0)
    for name in ("mpi", "torch"):
        peer = load(name)
        peer.start(comm, graph=False)
        if not peer.reason:
            call = Call(comm.rank, comm.size, 0, torch.uint8)
            found[name] = peer.prepare(COLLECTIVES["barrier"], False)(nothing, nothing, call)
    return found


def cpu_share(run: Run) -> float:
    """Return the share of one core that this process uses during a call, for calls that mostly wait."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def share(comm: Communicator, barrier: Run) -> float:
    """Return the largest share of a core among the ranks that wait."""
    shares = []
    for _ in range(TURNS):
        comm.barrier()
        if comm.rank == comm.size - 1:
            time.sleep(LATE_S)
        shares.append(max(comm.all_gather_object(cpu_share(barrier))[:-1]))
    return round(statistics.median(shares), 4)


def main() -> int:
    """Measure on the ranks there are, and let rank 0 print."""
    options = command_line(__doc__).parse_args()
    with commlib.init(backend="shm") as comm:
        rows = [{"barrier": name, "share_of_a_core": share(comm, run)} for name, run in barriers(comm).items()]
        if comm.rank == 0:
            print("\n".join(f"{row['barrier']:8} {row['share_of_a_core']:.0%}" for row in rows))
            write(options.output, {**head("waiting", comm.size), "late_s": LATE_S, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
