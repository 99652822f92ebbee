"""What the record of calls costs: small all-reduces with it, and by a library without it, in turns.

cmake -S . -B build/bare -DCMAKE_BUILD_TYPE=Release -DCOMMLIB_RECORDER=OFF && cmake --build build/bare -j
python benchmarks/record_cost.py build/bare/_native.abi3.so -o record.json
python benchmarks/record_cost.py build/bare/_native.abi3.so --device cuda --turns 6 -o record_gpu.json

On GPUs, calls are made eagerly, which the host's path bounds, and replayed from a graph, where only kernels run.
"""

from __future__ import annotations

import os
import random
import shlex
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from written import command_line, head, write

import commlib
from commlib.communicator import Communicator
from commlib.tools.timing.graph import Starter, capture, separate_stream

SIZES = (8, 1 << 10, 64 << 10)  # bytes
CALLS = {8: 4000, 1 << 10: 2000, 64 << 10: 200}
BLOCKS, EAGER, CAPTURED = 25, 1000, 90  # on GPUs: blocks, and calls of one
LIMIT_S = 120.0  # of a job


def measure_cpu() -> None:
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
                print(f"{size},eager {slowest:.1f}")


def measure_cuda() -> None:
    """The same on GPUs, in both modes."""
    with commlib.init(backend="nccl", max_bytes=1 << 20) as comm, separate_stream(comm.device):
        for size in SIZES:
            x = torch.ones(size // 4, device=comm.device)
            for mode, block in (("eager", eager_ns), ("graph", graph_ns)):
                slowest = max(comm.all_gather_object(block(comm, x)))
                if comm.rank == 0:
                    print(f"{size},{mode} {slowest:.1f}")


def eager_ns(comm: Communicator, x: torch.Tensor) -> float:
    """Return the time of an eager call."""
    blocks = []
    for _ in range(BLOCKS + 1):
        comm.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(EAGER):
            comm.all_reduce(x, "max")
        torch.cuda.synchronize()
        blocks.append((time.perf_counter() - start) / EAGER * 1e9)
    return statistics.median(blocks[1:])


def graph_ns(comm: Communicator, x: torch.Tensor) -> float:
    """Return the time of a call in a graph."""
    graph, starter = capture([lambda: comm.all_reduce(x, "max")] * CAPTURED), Starter(comm)
    blocks = [starter.time(graph) / CAPTURED * 1e9 for _ in range(BLOCKS + 1)]
    starter.close()
    graph.reset()
    return statistics.median(blocks[1:])


def once(device: str, library: str) -> dict[str, float]:
    """Measure in a job of its own."""
    command = [sys.executable, "-m", "commlib", "run", "-n", "2", "--bind", "core", "--no-prefix"]
    program = [sys.executable, "-c", f"import record_cost; record_cost.measure_{device}()"]
    environ = {**os.environ, "COMMLIB_LIBRARY": library}
    said = subprocess.run(
        [*command, *program], check=False, capture_output=True, text=True, env=environ, timeout=LIMIT_S
    )
    if said.returncode:
        raise SystemExit(f"{shlex.join(program)} with COMMLIB_LIBRARY={library!r} failed:\n{said.stderr}")
    return {key: float(ns) for key, ns in (line.split() for line in said.stdout.splitlines() if "," in line)}


def main() -> int:
    """Take turns, and write medians and their ratio."""
    parser = command_line(__doc__)
    parser.add_argument("bare", help="the library that was built without the record")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    times: dict[str, list[dict[str, float]]] = {"": [], options.bare: []}
    for turn in range(options.turns):
        for library in random.sample(list(times), 2):
            times[library].append(once(options.device, library))
            print(f"turn {turn}, {'without' if library else 'with'}: {times[library][-1]}", flush=True)
    rows: list[dict[str, Any]] = []
    for key in times[""][0]:
        ours, bare = ([turn[key] for turn in times[library]] for library in ("", options.bare))
        ratios = sorted(one / other for one, other in zip(ours, bare, strict=True))
        medians = {"with_ns": statistics.median(ours), "without_ns": statistics.median(bare)}
        ratio = round(medians["with_ns"] / medians["without_ns"], 4)
        size, mode = key.split(",")
        spread = [round(ratios[0], 3), round(ratios[-1], 3)]
        rows.append({"bytes": int(size), "mode": mode, **medians, "ratio": ratio, "of_turns": spread})
        print(rows[-1], flush=True)
    backend = {"cpu": "shm", "cuda": "nccl"}[options.device]
    write(options.output, {**head("record_cost", 2, backend), "turns": options.turns, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
