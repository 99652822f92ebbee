"""One call of a collective on live GPUs, without a report: what `commlib bench --ncu` and `--nsys` look at."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from commlib.errors import Unsupported
from commlib.plan import Plan
from commlib.tools.bench.job import Job, calls, forms, joined
from commlib.tools.report import nsight
from commlib.tools.timing import Candidate, buffers_of, pinned, plain_on, public_call

# Each pass of ncu's starts the ranks anew, as a kernel that waits for its peers must not be run twice: so few passes.
NCU = ("--set=basic", "--target-processes=all", "--replay-mode=application")


def command(tool: str, job: Job, ranks: int | None, argv: Sequence[str]) -> list[str]:
    """Return the command line that looks at rank 0 of the one call asked for in this line of `commlib bench`."""
    if job.backend == "shm" or job.protocol.graph or ranks is None:
        raise ValueError(f"--{tool} looks at one eager call on GPUs and starts the ranks itself: say how many, -n 2")
    parts = {"OP": job.ops, "--sizes": job.sizes, "--dtype": job.dtypes, "--redop": job.redops}
    for option, values in {**parts, "--algorithms": job.algorithms}.items():
        if len(values) != 1:
            raise ValueError(f"--{tool} looks at one call, and {option} names {len(values)}; name one")
    output = f"{job.ops[0]}-{job.algorithms[0].replace('all', 'auto')}-{job.sizes[0]}"
    return nsight.command(tool, output, ["bench", *(arg for arg in argv if arg != f"--{tool}"), "--once"], NCU)


def main(job: Job) -> int:
    with joined(job) as comm:
        if comm.device.type != "cuda":
            raise Unsupported(
                f"--ncu and --nsys look at GPUs, and the ranks use {comm.device}; use `perf record` there"
            )
        ((collective, call),), (name,) = calls(comm, job), job.algorithms
        in_place = forms(job, collective)[0]
        if name in ("all", "auto"):
            candidate = Candidate(name, public_call(comm, collective), in_place, plain_on(comm.device))
        else:
            plan = Plan.only({collective.name: name}, base=comm.plan)
            candidate = pinned(comm, collective, collective.algorithm(name), plan, in_place)
        x, out = buffers_of(collective, call, candidate)
        x.zero_()
        run = candidate.prepare(x, out, call)
        candidate.enter()
        nsight.look_at(run, partial(torch.cuda.synchronize, comm.device), looks=comm.rank == 0)
        comm.barrier()
    return 0
