"""What the record of calls costs: small all-reduces on shared memory with it, and by a library without it, in turns.

cmake -S . -B build/bare -DCMAKE_BUILD_TYPE=Release -DCOMMLIB_RECORDER=OFF && cmake --build build/bare
python benchmarks/record_cost.py build/bare/_native.abi3.so -o benchmarks/results/record_xeon_2_cores.json
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from written import command_line, head, write

import commlib

SIZES = (8, 1 << 10, 64 << 10)  # bytes
CALLS = {8: 4000, 1 << 10: 2000, 64 << 10: 200}
RUN = "import record_cost; record_cost.measure()"


def measure() -> None:
    """Be a rank: print the time of a call in ns, the median of blocks, for each size."""
    with commlib.init(backend="shm", max_bytes=1 << 20) as comm:
        for size in SIZES:
            x, blocks = torch.ones(size // 4), []
            for block in range(26):
                comm.barrier()
                start = time.perf_counter()
                for _ in range(CALLS[size]):
                    comm.all_reduce(x)
                if block:
                    blocks.append((time.perf_counter() - start) / CALLS[size] * 1e9)
            slowest = max(comm.all_gather_object(statistics.median(blocks)))
            if comm.rank == 0:
                print(f"{size} {slowest:.1f}")


def once(library: str) -> dict[int, float]:
    """Measure in a job of its own."""
    command = [sys.executable, "-m", "commlib", "run", "-n", "2", "--bind", "core", "--no-prefix"]
    environ = {**os.environ, "COMMLIB_LIBRARY": library}
    said = subprocess.run(
        [*command, sys.executable, "-c", RUN], check=True, capture_output=True, text=True, env=environ
    )
    return {int(size): float(ns) for size, ns in (line.split() for line in said.stdout.splitlines())}


def main() -> int:
    """Take turns, and write medians and their ratio."""
    parser = command_line(__doc__)
    parser.add_argument("bare", help="the library that was built without the record")
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    times: dict[str, list[dict[int, float]]] = {"": [], options.bare: []}
    for _ in range(options.turns):
        for library in random.sample(list(times), 2):
            times[library].append(once(library))
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        ours, bare = ([turn[size] for turn in times[library]] for library in ("", options.bare))
        ratios = sorted(one / other for one, other in zip(ours, bare, strict=True))
        medians = {"with_ns": statistics.median(ours), "without_ns": statistics.median(bare)}
        ratio = round(medians["with_ns"] / medians["without_ns"], 4)
        rows.append({"bytes": size, **medians, "ratio": ratio, "of_turns": [round(ratios[0], 3), round(ratios[-1], 3)]})
        print(rows[-1], flush=True)
    write(options.output, {**head("record_cost", 2, "shm"), "turns": options.turns, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
