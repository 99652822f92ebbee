"""One call of a collective on live GPUs, without a report: what `commlib bench --ncu` and `--nsys` look at."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from commlib.collectives import Collective
from commlib.communicator import Communicator
from commlib.errors import Unsupported
from commlib.plan import Plan
from commlib.tools.bench.job import Job, calls, forms, joined
from commlib.tools.bench.measure import pinned_to
from commlib.tools.report import nsight
from commlib.tools.timing import Candidate, buffers_of, plain_on, public_call

PLANS_CHOICE = ("all", "auto")
# Each pass of ncu's starts the ranks anew, as a kernel that waits for its peers must not be run twice: so few passes.
NCU = ("--set=basic", "--target-processes=all", "--replay-mode=application")


def command(tool: str, job: Job, ranks: int | None, words: Sequence[str]) -> list[str]:
    """Return the command line that looks at rank 0 of the one call asked for in these words of `commlib bench`."""
    if job.backend == "shm" or job.protocol.graph:
        other = "--backend shm is on the CPU" if job.backend == "shm" else "a graph has many"
        raise ValueError(f"--{tool} looks at one eager call on GPUs, and {other}; leave it out")
    if ranks is None:
        raise ValueError(f"--{tool} starts the ranks itself; say how many: -n 2")
    asked = {
        "collective": (job.ops, "all_reduce"),
        "size": (job.sizes, "--sizes 1M"),
        "element type": (job.dtypes, "--dtype bf16"),
        "reduction": (job.redops, "--redop sum"),
        "algorithm": (job.algorithms, "--algorithms auto"),
    }
    for what, (found, remedy) in asked.items():
        if len(found) != 1:
            raise ValueError(f"--{tool} looks at one call, not at {len(found)} {what}s; name one, such as {remedy}")
    output = f"{job.ops[0]}-{job.algorithms[0].replace('all', 'auto')}-{job.sizes[0]}"
    program = ["bench", *(word for word in words if word != f"--{tool}"), "--once"]
    return nsight.command(tool, output, program, NCU)


def main(job: Job) -> int:
    with joined(job) as comm:
        if comm.device.type != "cuda":
            raise Unsupported(
                f"--ncu and --nsys look at GPUs, and the ranks use {comm.device}; use `perf record` there"
            )
        ((collective, call),) = calls(comm, job)
        candidate = _candidate(comm, job, collective)
        x, out = buffers_of(collective, call, candidate)
        x.zero_()
        run = candidate.prepare(x, out, call)
        candidate.enter()
        nsight.look_at(run, partial(torch.cuda.synchronize, comm.device), looks=comm.rank == 0)
        comm.barrier()
    return 0


def _candidate(comm: Communicator, job: Job, collective: Collective) -> Candidate:
    in_place, (name,) = forms(job, collective)[0], job.algorithms
    if name in PLANS_CHOICE:
        return Candidate(name, public_call(comm, collective), in_place, plain_on(comm.device))
    plan = Plan.only({collective.name: name}, base=comm.plan)
    return pinned_to(comm, collective, collective.algorithm(name), plan, in_place)
