"""Time collectives on tensors that are not aligned, next to the same call on tensors that are.

    commlib run -n 2 python benchmarks/unaligned.py -o unaligned.json
    commlib run -n 2 python benchmarks/unaligned.py --ops all_reduce --sizes 1K,64M --dtype float32

Tensors begin 8 bytes, or one element, behind an address that suits every access; or they have one element more, so that
blocks of other ranks begin anywhere. Results must have the bits of the aligned call's. All take turns, in CUDA graphs
on GPUs; the plan chooses what runs.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from written import command_line, figures, head, joined, ratio, ratio_text, write

from commlib.collectives import COLLECTIVES, Call
from commlib.communicator import Communicator
from commlib.env import parse_bytes
from commlib.tools.report.formats import size_text
from commlib.tools.timing import Protocol, Run, measure_calls, separate_stream

ALIGNED = "aligned"
SETS = 3  # of tensors, in rotation


class Case(NamedTuple):
    """Where tensors begin, in elements, and how many elements they have more."""

    shift: int = 0
    more: int = 0


def cases(dtype: torch.dtype) -> dict[str, Case]:
    """Return them by name; the first is what the others are compared with."""
    return {ALIGNED: Case(), "8 bytes": Case(8 // dtype.itemsize), "an element": Case(1), "one more": Case(0, 1)}


def runs_of(comm: Communicator, op: str, count: int, dtype: torch.dtype, case: Case) -> tuple[list[Run], torch.Tensor]:
    """Return calls on so many sets of tensors, and the first one's result."""
    spec = COLLECTIVES[op]
    call = Call(comm.rank, comm.size, spec.whole(count) + case.more, dtype, root=0)
    found: list[Run] = []
    results = []
    for _ in range(SETS):
        x, out = (
            torch.zeros(case.shift + elements, dtype=dtype, device=comm.device)[case.shift :]
            for elements in spec.shapes(call)
        )
        x.copy_(torch.arange(len(x), device=comm.device) % 23 + comm.rank)
        spec.invoke(comm, x, out, call)
        found.append(partial(spec.invoke, comm, x, out, call))
        results.append(out)
    return found, results[0]


def measure(
    comm: Communicator, op: str, num_bytes: int, dtype: torch.dtype, protocol: Protocol
) -> list[dict[str, Any]]:
    """Check and time all cases of a call; return a row for each."""
    per_element = COLLECTIVES[op].num_bytes(Call(comm.rank, comm.size, 1, dtype))
    calls, results = {}, {}
    for name, case in cases(dtype).items():
        calls[name], results[name] = runs_of(comm, op, num_bytes // per_element, dtype, case)
    same = {
        name: len(out) != len(results[ALIGNED]) or torch.equal(out, results[ALIGNED]) for name, out in results.items()
    }
    first, *others = measure_calls(comm, calls, protocol, f"{op} of {size_text(num_bytes)}B")
    algorithm = comm.explain(op, num_bytes, dtype).algorithm
    row = {"op": op, "bytes": num_bytes, "algorithm": algorithm}
    return [{**row, "case": ALIGNED, **figures(first)}] + [
        {**row, "case": each.label, **figures(each), "same": same[each.label], "over": ratio(each, first)}
        for each in others
    ]


def main() -> int:
    """Measure every call, print it, and write the figures."""
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="without it, GPUs where every rank has one")
    parser.add_argument("--ops", default="all_reduce,all_gather,reduce_scatter,all_to_all,broadcast")
    parser.add_argument("--sizes", default="1K,16K,128K,1M,8M,64M")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--time", type=float, default=0.5, help="seconds for a call of a size")
    options = parser.parse_args()
    dtype, rows = getattr(torch, options.dtype), []
    with joined(options.device) as comm:
        gpu = comm.device.type == "cuda"
        protocol = Protocol(blocks=(5, 25), budget_s=options.time, graph=gpu)
        with separate_stream(comm.device) if gpu else nullcontext():
            for op in options.ops.split(","):
                for size in options.sizes.split(","):
                    first, *others = measure(comm, op, parse_bytes(size), dtype, protocol)
                    rows += [first, *others]
                    cells = ", ".join(f"{row['case']} × {ratio_text(row['over'])}" for row in others)
                    if comm.rank == 0:
                        print(f"{op} of {size} by {first['algorithm']}: {first['us']} µs; {cells}", flush=True)
        if comm.rank == 0:
            write(options.output, {**head("unaligned", comm.size, comm.backend, launched=True), "rows": rows})
    return int(not all(row.get("same", True) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
