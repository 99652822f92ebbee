"""Millions of small all-reduces back to back, in replayed graphs and eagerly, every value checked on the device.

    python benchmarks/soak.py --calls 10000000 --seconds 120 -o soak.json

Each rank's input is a whole number that depends on its rank, the place and a step that moves in the graph itself, so
that no call may deliver what the call before it did. Half of the calls are in place. Sizes are random, up to 64 KiB,
one after the other in memory: odd counts leave what follows unaligned. Exits with code 1 on a wrong value.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import torch
from written import command_line, head, write

from commlib.communicator import Communicator
from commlib.tools.testing import RankError, Ranks
from commlib.tools.timing.graph import capture

MOST_BYTES = 65536
COUNTS = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 100, 127, 129, 255, 257, 511, 512, 513, 1000, 1023, 1024, 1025)
COUNTS += (2048, 2049, 3001, 4095, 4096, 4097, 5000, 8191, 8192, 8193, 12345, 16383, 16384, 20001, 32767, 32768)
CALLS_OF_ROUND = {torch.bfloat16: 14, torch.float32: 13, torch.int32: 13}
ROUNDS_OF_GRAPH = 5  # of 40 calls: 200
LAYOUTS = 6
STEPS = 16  # the step goes from 0 to here and starts again: sums stay exact in bf16
GRAPHS_OF_CHUNK, GRAPHS_OF_EAGER_ROUND = 40, 10
PROGRESS_S = 5.0
SLACK_S = 150.0  # to start, and to build kernels of three types


class Lane:
    """The buffers of one element type, shared by all layouts."""

    def __init__(self, comm: Communicator, dtype: torch.dtype) -> None:
        most = CALLS_OF_ROUND[dtype] * MOST_BYTES // dtype.itemsize
        self.ranks = comm.size
        place = torch.arange(most, device=comm.device)
        bases = [((place * (2 * rank + 3) + rank) % 7 + 1).to(dtype) for rank in range(comm.size)]
        self.base, self.total = bases[comm.rank], torch.stack([base.double() for base in bases]).sum(0).to(dtype)
        self.x, self.out, self.expected = (torch.zeros_like(self.base) for _ in range(3))
        self.step = torch.zeros((), dtype=dtype, device=comm.device)
        self.wrong = torch.zeros((), dtype=torch.int64, device=comm.device)


class Layout:
    """One draw of sizes for each element type, and the round of calls on them."""

    def __init__(self, comm: Communicator, lanes: dict[torch.dtype, Lane], phase: torch.Tensor, seed: str) -> None:
        draw = random.Random(seed)
        self._comm, self._phase = comm, phase
        self._parts: list[tuple[Lane, int, list[tuple[torch.Tensor, torch.Tensor | None]]]] = []
        self.calls = 0
        for dtype, lane in lanes.items():
            fitting = [count for count in COUNTS if count * dtype.itemsize <= MOST_BYTES]
            at, calls = 0, []
            for number in range(CALLS_OF_ROUND[dtype]):
                count = draw.choice(fitting)
                x, out = lane.x[at : at + count], lane.out[at : at + count]
                calls.append((out, None) if number % 2 else (x, out))
                at += count
            self._parts.append((lane, at, calls))
            self.calls += len(calls)

    def round(self) -> None:
        """Move the step, make every call, and count what is not the sum of all ranks."""
        self._phase.add_(1).remainder_(STEPS)
        for lane, elements, calls in self._parts:
            x, out, expected = (tensor[:elements] for tensor in (lane.x, lane.out, lane.expected))
            lane.step.copy_(self._phase)
            torch.add(lane.base[:elements], lane.step, out=x)
            out.copy_(x)  # the input of calls in place, and no sum where a call writes nothing
            for tensor, target in calls:
                self._comm.all_reduce(tensor, "sum", target)
            torch.add(lane.total[:elements], lane.step, alpha=lane.ranks, out=expected)
            lane.wrong.add_(out.ne(expected).sum())


def soak(comm: Communicator, calls: int, seconds: float, seed: int) -> dict[str, Any]:
    """Make so many calls on this rank, or for so long; all ranks stop at the same one."""
    gpu = comm.device.type == "cuda"
    lanes = {dtype: Lane(comm, dtype) for dtype in CALLS_OF_ROUND}
    phase = torch.zeros((), dtype=torch.int64, device=comm.device)
    layouts = [Layout(comm, lanes, phase, f"{seed} {number}") for number in range(LAYOUTS)]
    for layout in layouts:
        layout.round()  # before a capture: kernels are built and loaded
    graphs = [capture([layout.round] * ROUNDS_OF_GRAPH) for layout in layouts] if gpu else []
    counts = {"eager": sum(layout.calls for layout in layouts), "graph": 0}
    draw = random.Random(seed)
    start, told, why = time.monotonic(), 0.0, ""
    while not why:
        _chunk(layouts, graphs, draw, counts)
        wrong = {str(dtype).removeprefix("torch."): int(lane.wrong) for dtype, lane in lanes.items()}
        found = comm.all_gather_object((sum(wrong.values()), time.monotonic() - start))
        bad, elapsed = sum(w for w, _ in found), max(e for _, e in found)
        done = sum(counts.values())
        reached = {"wrong values": bad > 0, "calls": done >= calls, "seconds": elapsed >= seconds}
        why = next((name for name, here in reached.items() if here), "")
        if comm.rank == 0 and (why or elapsed - told >= PROGRESS_S):
            told = elapsed
            print(f"{done / 1e6:8.2f} M calls in {elapsed:6.1f} s, {bad} wrong", flush=True)
    for graph in graphs:
        graph.reset()
    comm.barrier()
    return {"stopped_by": why, "calls": counts, "wrong": wrong, "seconds": round(elapsed, 2)}


def _chunk(layouts: list[Layout], graphs: list[Any], draw: random.Random, counts: dict[str, int]) -> None:
    """Make a few thousand calls: replays, and eager rounds between them."""
    for number in range(GRAPHS_OF_CHUNK):
        at = draw.randrange(LAYOUTS)
        if graphs:
            graphs[at].replay()
            counts["graph"] += ROUNDS_OF_GRAPH * layouts[at].calls
        if number % GRAPHS_OF_EAGER_ROUND == 0:
            layout = draw.choice(layouts)
            layout.round()
            counts["eager"] += layout.calls


def main() -> int:
    """Run it on every GPU and write what happened."""
    parser = command_line(__doc__)
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=300.0, help="stop then, and say how many calls were made")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count(), help="default: every GPU")
    parser.add_argument("--backend", default="nccl", help="shm: a dry run without GPUs, eager only")
    options = parser.parse_args()
    if options.ranks < 2:
        sys.exit("soak.py: needs two GPUs")
    document = head("soak", options.ranks, options.backend)
    settings = {"backend": options.backend, "timeout_s": 30.0, "max_bytes": 64 << 20}
    try:
        with Ranks(options.ranks, deadline_s=options.seconds + SLACK_S, **settings) as ranks:
            found = ranks.run(soak, options.calls, options.seconds, options.seed)
    except RankError as error:
        write(options.output, {**document, "error": str(error)})
        sys.exit(str(error))
    wrong = sum(sum(result["wrong"].values()) for result in found)
    of_ranks = [result["wrong"] for result in found]
    write(options.output, {**document, **found[0], "wrong_of_ranks": of_ranks, "mismatches": wrong})
    print(f"{found[0]['calls']} all-reduces on {options.ranks} ranks in {found[0]['seconds']} s, {wrong} wrong values")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
