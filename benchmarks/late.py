"""What it costs when a rank comes late: two all-reduces on that rank, from its coming to their end.

    python benchmarks/late.py -o late.json

All ranks sleep on the device until the host has launched everything; the last rank sleeps longer. The others wait for
it in their first call, and it waits for them in its second. Ours by the plan and NCCL's call; medians of the rounds.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
from written import command_line, head, write

from commlib.communicator import Communicator
from commlib.env import parse_bytes
from commlib.plan import Plan
from commlib.tools.report.formats import size_text
from commlib.tools.report.view import grouped
from commlib.tools.testing import Ranks

LATE_US = (0, 20, 50, 100, 200, 500, 1000, 5000)
AHEAD_US = 300  # for the host to launch a round
CALIBRATION_CYCLES = 20_000_000
CALLS = 2


class Device:
    """Sleeps and marks on the stream; without a GPU, on the host."""

    def __init__(self, gpu: bool) -> None:
        self._gpu = gpu
        self._cycles_of_us = 0.0
        if gpu:
            torch.cuda._sleep(CALIBRATION_CYCLES)
            before = self.mark()
            torch.cuda._sleep(CALIBRATION_CYCLES)
            self._cycles_of_us = CALIBRATION_CYCLES / self.between(before, self.mark())

    def sleep(self, us: float) -> None:
        """Let the stream do nothing for so long."""
        if self._gpu:
            torch.cuda._sleep(int(us * self._cycles_of_us))
        else:
            time.sleep(us * 1e-6)

    def mark(self) -> Any:
        """Take the time here."""
        if not self._gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, first: Any, second: Any) -> float:
        """Return microseconds, once both are past."""
        if not self._gpu:
            return (second - first) * 1e6
        second.synchronize()
        return float(first.elapsed_time(second)) * 1000


def measure(comm: Communicator, sizes: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    """Return a row for each size, candidate and lateness: microseconds on the rank that comes late."""
    device = Device(comm.device.type == "cuda")
    base, rows = comm.plan, []
    plans = {"auto": base}
    if comm.backend == "nccl":
        plans["nccl_direct"] = Plan.only({"all_reduce": "nccl_direct"}, base=base)
    for num_bytes in sizes:
        x = torch.zeros(num_bytes // 2, dtype=torch.bfloat16, device=comm.device)
        found: dict[tuple[str, int], list[float]] = {}
        for number in range(rounds + 1):  # the first is a rehearsal
            for name, plan in plans.items():
                comm.use(plan)
                _round(comm, device, x, 0)  # a new plan keeps the host busy
                for late in LATE_US:
                    us = _round(comm, device, x, late)
                    if number:
                        found.setdefault((name, late), []).append(us)
        comm.use(base)
        rows += [
            {"bytes": num_bytes, "candidate": name, "late_us": late, "us": round(statistics.median(times), 2)}
            for (name, late), times in found.items()
        ]
    return rows


def _round(comm: Communicator, device: Device, x: torch.Tensor, late: float) -> float:
    comm.barrier()
    device.sleep(AHEAD_US + late * (comm.rank == comm.size - 1))
    before = device.mark()
    for _ in range(CALLS):
        comm.all_reduce(x, out=x)
    return device.between(before, device.mark())


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as text: a line for each size and candidate."""
    lines = [f"{'bytes':>8s} {'candidate':12s}" + "".join(f"{f'+{late} us':>10s}" for late in LATE_US)]
    for of_line in grouped(rows, lambda row: (row["bytes"], row["candidate"])):
        times = "".join(f"{row['us']:10.2f}" for row in of_line)
        lines.append(f"{size_text(of_line[0]['bytes']):>8s} {of_line[0]['candidate']:12s}{times}")
    return "\n".join(lines)


def main() -> int:
    """Run it on every GPU, print the table and write the figures."""
    parser = command_line(__doc__)
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count(), help="default: every GPU")
    parser.add_argument("--sizes", default="1K,64K,1M,8M,64M")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--backend", default="nccl", help="shm: a dry run without GPUs, by the host's clock")
    options = parser.parse_args()
    if options.ranks < 2:
        sys.exit("late.py: needs two GPUs")
    sizes = tuple(map(parse_bytes, options.sizes.split(",")))
    with Ranks(options.ranks, deadline_s=180, backend=options.backend, timeout_s=30.0) as ranks:
        rows = ranks.run(measure, sizes, options.rounds)[-1]
    print(table(rows))
    write(options.output, {**head("late", options.ranks, options.backend), "calls": CALLS, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
