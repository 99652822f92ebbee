"""Break jobs at random, and see whether `commlib debug` names the rank and the call; or look at healthy ones.

python benchmarks/hangs.py --faults 200 -o benchmarks/results/hangs.json
python benchmarks/hangs.py --healthy 600      # seconds; what it finds there is a false alarm
python benchmarks/hangs.py --faults 50 --graphs --device cuda -o graph_hangs.json     # inside of replayed graphs

Each job is 2 to 4 ranks that make random calls on several communicators, from one or two threads. In each, one rank
does something wrong at a random moment; the job is then looked at from outside, as the command does.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import graph_hangs
import torch
from written import command_line, head, write

import commlib
from commlib.communicator import Communicator
from commlib.debug.findings import Finding, findings_lines, findings_of
from commlib.debug.jobs import Job, look, moments
from commlib.debug.record import records_of
from commlib.errors import CommError
from commlib.tools.launch import end_with
from commlib.tools.testing.ranks import PRELOAD

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "barrier", "message")
DTYPES = (torch.float32, torch.bfloat16, torch.int64)
COUNTS = (1, 8, 1000, 40_000)
CALLS = ("skip", "extra", "size", "type", "operation", "root", "reduction", "order")  # what a rank can do to a call
KINDS = (*CALLS, "loop", "slow", "SIGSTOP", "SIGKILL", "launcher")
STUCK_S, APART_S, HELD_S = 1.3, 0.7, 1000.0
NAP_S = 0.02  # of a healthy rank, now and then
LOOKS = 20  # at a healthy job


class Step(NamedTuple):
    """One call that all ranks of a communicator make."""

    comm: int
    op: str
    dtype: torch.dtype
    count: int
    redop: str
    root: int


@dataclass(frozen=True)
class Plan:
    """A job: its ranks and threads, and what goes wrong in it."""

    seed: int
    ranks: int
    kind: str  # empty: nothing goes wrong
    culprit: int
    threads: int
    thread: int  # in which it happens
    step: int


def drawn(plan: Plan, thread: int, number: int, world: int) -> Step:
    """Return a step of a thread; thread 0 has communicators 0 and 1, thread 1 has communicator 2."""
    draw = random.Random(f"{plan.seed} {thread} {number}")
    comm = draw.choice((0, 0, 1)) if thread == 0 else 2
    op = draw.choice(OPS)
    if plan.kind == "root" and number == plan.step:
        # A rank that wrongly takes itself for the root of a broadcast waits for nobody, and shm does not notice.
        right = plan.culprit if thread == 0 else world - 1 - plan.culprit
        return Step(2 * thread, "broadcast", draw.choice(DTYPES), draw.choice(COUNTS), "sum", right)
    if plan.kind == "reduction" and number == plan.step:
        op = "all_reduce"
    if plan.kind in ("size", "type") and number == plan.step and op in ("barrier", "message"):
        op = "all_gather"
    if plan.kind in ("skip", "order") and number in (plan.step, plan.step + 1):
        op = OPS[number % 2]  # not the same twice
    return Step(comm, op, draw.choice(DTYPES), draw.choice(COUNTS), draw.choice(("sum", "max")), draw.randrange(world))


def wrong(plan: Plan, step: Step, world: int) -> Step:
    """Return what the culprit calls instead."""
    other_op = "all_gather" if step.op == "all_reduce" else "all_reduce"
    changed = {
        "size": {"count": step.count + 1},
        "type": {"dtype": DTYPES[(DTYPES.index(step.dtype) + 1) % len(DTYPES)]},
        "operation": {"op": other_op},
        "root": {"root": (step.root + 1) % world},
        "reduction": {"redop": "max" if step.redop == "sum" else "sum"},
    }
    return step._replace(**changed[plan.kind])  # type: ignore[arg-type]


def make(comm: Communicator, step: Step) -> None:
    """Make one call."""
    x, root = torch.ones(step.count, dtype=step.dtype), step.root % comm.size
    many = torch.ones(comm.size * step.count, dtype=step.dtype)
    if step.op == "all_reduce":
        comm.all_reduce(x, step.redop)  # type: ignore[arg-type]
    elif step.op == "all_gather":
        comm.all_gather_into_tensor(many, x)
    elif step.op == "reduce_scatter":
        comm.reduce_scatter_tensor(x, many, step.redop)  # type: ignore[arg-type]
    elif step.op == "broadcast":
        comm.broadcast(x, root)
    elif step.op == "reduce":
        comm.reduce(x, root, step.redop)  # type: ignore[arg-type]
    elif step.op == "all_to_all":
        comm.all_to_all_single(many, torch.ones_like(many))
    elif step.op == "barrier":
        comm.barrier()
    elif comm.rank == root:
        comm.send(x, (root + 1) % comm.size)
    elif comm.rank == (root + 1) % comm.size:
        comm.recv(x, root)


def endless() -> None:
    """Be busy for ever."""
    while True:
        pass


def held() -> None:
    """Stay: a rank that failed is still to be looked at."""
    time.sleep(HELD_S)


class Traffic:
    """The calls of one thread of a rank."""

    def __init__(self, plan: Plan, comms: list[Communicator], thread: int, told: Connection) -> None:
        self.plan, self.comms, self.thread, self.told = plan, comms, thread, told
        self.rank = comms[0].rank
        self.breaks = plan.kind != "" and (plan.culprit, plan.thread) == (self.rank, thread)
        self.naps = random.Random(f"{plan.seed} {thread} {self.rank}")

    def run(self) -> None:
        """Make calls until something ends them."""
        try:
            number = 0
            while True:
                number = self.one(number)
        except (CommError, ValueError):
            held()

    def one(self, number: int) -> int:
        """Make one call, or what the culprit makes of it; return the number of the next."""
        step = self.step(number)
        if self.naps.random() < 0.02:
            time.sleep(self.naps.uniform(0, NAP_S))
        if self.breaks and number == self.plan.step:
            return self.broken(number, step)
        if self.breaks and self.plan.kind == "slow" and number > self.plan.step:
            time.sleep(0.2)
        make(self.comms[step.comm], step)
        return number + 1

    def step(self, number: int) -> Step:
        """Return what all ranks call next."""
        return drawn(self.plan, self.thread, number, self.comms[0].size)

    def broken(self, number: int, step: Step) -> int:
        """Do what goes wrong; return the number of the next call."""
        kind, comm = self.plan.kind, self.comms[step.comm]
        self.tell(step.comm)
        if kind == "loop":
            endless()
        elif kind == "extra":
            make(comm, Step(step.comm, "all_reduce", torch.float32, 77, "sum", 0))
            make(comm, step)
        elif kind == "order":
            later = self.step(number + 1)
            make(self.comms[later.comm], later)
            make(comm, step)
            return number + 2
        elif kind in CALLS[2:]:
            make(comm, wrong(self.plan, step, comm.size))
        elif kind != "skip":
            make(comm, step)
        return number + 1

    def tell(self, comm: int) -> None:
        """Say which call the fault is in: the next one of this communicator."""
        slots = look([os.getpid()]).ranks[os.getpid()].slots
        self.told.send((slots[comm].id, slots[comm].entered + 1))


def be_rank(rank: int, plan: Plan, port: int, told: Connection) -> None:
    """Join the others, and make calls."""
    torch.set_num_threads(1)
    where = {"rank": rank, "size": plan.ranks, "address": f"127.0.0.1:{port}", "backend": "shm"}
    comm = commlib.init(**where, max_bytes=1 << 20, timeout_s=60.0)  # type: ignore[arg-type]
    # The second has other ranks than the first where there are enough of them.
    part = comm.split(0 if plan.ranks < 4 or rank != (plan.culprit + 1) % 4 else 1)
    other = comm.split(0, -rank)
    assert part is not None and other is not None
    comms = [comm, part, other]
    told.send(os.getpid())
    for thread in range(1, plan.threads):
        threading.Thread(target=Traffic(plan, comms, thread, told).run, daemon=True).start()
    Traffic(plan, comms, 0, told).run()


def launch(plan: Plan, port: int, pipes: list[Connection], life: Connection) -> None:
    """Be the launcher: fork the ranks, and wait for them; all end with the program that breaks them."""
    os.setsid()
    end_with(life.fileno(), -os.getpid())
    for rank in range(plan.ranks):
        if os.fork() == 0:
            try:
                be_rank(rank, plan, port, pipes[rank])
            finally:
                os._exit(1)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


class Ranks:
    """A job under way."""

    def __init__(self, plan: Plan) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOAD, "written"])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        pairs = [context.Pipe() for _ in range(plan.ranks)]
        self.pipes = [ours for ours, _ in pairs]
        life, self.lifeline = context.Pipe(duplex=False)
        self.launcher = context.Process(target=launch, args=(plan, port, [theirs for _, theirs in pairs], life))
        self.launcher.start()
        life.close()
        for _, theirs in pairs:
            theirs.close()
        self.pids: list[int] = [pipe.recv() for pipe in self.pipes]

    def end(self) -> None:
        """Kill what is left of it."""
        for pid in [self.launcher.pid, *self.pids]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid or 0, signal.SIGKILL)
        self.launcher.join()
        self.lifeline.close()

    def look(self) -> tuple[Job, Job, list[Finding]]:
        """Do as the command does."""
        records = [record for pid in self.pids for record in records_of(pid)]  # others may have jobs here too
        ((before, job),) = moments([records], APART_S)
        return before, job, findings_of(job, before)


def one_fault(plan: Plan) -> dict[str, Any]:
    """Run a job until it breaks, look at it, and say whether it was told what happened."""
    ranks = Ranks(plan)
    draw = random.Random(plan.seed)
    expected: tuple[int, int] | None = None
    try:
        if plan.kind in ("SIGSTOP", "SIGKILL", "launcher"):
            time.sleep(draw.uniform(0.05, 0.5))
            victim = ranks.launcher.pid if plan.kind == "launcher" else ranks.pids[plan.culprit]
            os.kill(victim or 0, signal.SIGSTOP if plan.kind == "SIGSTOP" else signal.SIGKILL)
        else:
            expected = ranks.pipes[plan.culprit].recv()
        time.sleep(STUCK_S)
        started = time.monotonic()
        before, job, findings = ranks.look()
        seconds = time.monotonic() - started
        job.ask_stacks({pid for finding in findings for pid in finding.threads})
        said = findings_lines(job, before, findings)
        right = judged(plan, job, findings, said, expected)
    finally:
        ranks.end()
    row = {"kind": plan.kind, "ranks": plan.ranks, "threads": plan.threads, "seed": plan.seed, "right": right}
    return {**row, "seconds": round(seconds, 2), "said": [] if right else said, "expected": [] if right else expected}


def judged(plan: Plan, job: Job, findings: list[Finding], said: list[str], expected: tuple[int, int] | None) -> bool:
    """Whether the first finding is about the right rank and call."""
    if not findings:
        return False
    first, text = findings[0], "\n".join(said)
    if plan.kind in ("launcher", "slow", "SIGKILL"):
        names = {"launcher": "launcher", "slow": "late", "SIGKILL": "gone"}
        return first.kind == names[plan.kind] and (plan.kind == "launcher" or first.ranks == (plan.culprit,))
    if plan.kind in ("SIGSTOP", "loop"):
        word = "stopped by a signal" if plan.kind == "SIGSTOP" else "in endless"
        return first.kind == "missing" and first.ranks == (plan.culprit,) and word in text
    world = next(slots[0].world for number, slots in job.communicators.items() if expected and number == expected[0])
    named = first.ranks == (plan.culprit,) if world > 2 else plan.culprit in first.ranks
    return named and expected in first.calls


def plan_of(number: int, seed: int, kinds: tuple[str, ...]) -> Plan:
    """Draw a job."""
    draw = random.Random(f"{seed} {number}")
    ranks, threads = draw.choice((2, 3, 4)), draw.choice((1, 2))
    kind = kinds[number % len(kinds)]
    return Plan(
        draw.randrange(1 << 30),
        ranks,
        kind,
        draw.randrange(ranks),
        threads,
        draw.randrange(threads),
        draw.randint(5, 300),
    )


def faults(options: Any) -> int:
    """Break jobs, and count those of which the right rank and call were told."""
    rows = []
    for number in range(options.first, options.first + options.faults):
        rows.append(one_fault(plan_of(number, options.seed, options.kinds or KINDS)))
        if not rows[-1]["right"] or options.verbose:
            print(json.dumps(rows[-1], indent=1), flush=True)
    right, kinds = sum(row["right"] for row in rows), Counter(row["kind"] for row in rows)
    by_kind = {kind: [sum(row["right"] for row in rows if row["kind"] == kind), count] for kind, count in kinds.items()}
    found = {"faults": len(rows), "right": right, "by_kind": by_kind, "slowest_s": max(row["seconds"] for row in rows)}
    print(json.dumps(found))
    missed = [{key: row.pop(key) for key in ("said", "expected")} for row in rows]
    told = [{**row, **text} for row, text in zip(rows, missed, strict=True) if not row["right"]]
    write(options.output, {**head("hangs", 4, "shm"), "seed": options.seed, **found, "missed": told, "rows": rows})
    return int(right < 0.99 * len(rows))


def healthy(options: Any) -> int:
    """Look at jobs in which nothing is wrong, each for some seconds."""
    rows: list[dict[str, Any]] = []
    until = time.monotonic() + options.healthy
    while time.monotonic() < until:
        plan = plan_of(len(rows), options.seed, ("",))
        ranks = Ranks(plan)
        alarms = [finding.text for _ in range(LOOKS) for finding in ranks.look()[2]]
        ranks.end()
        rows.append({"ranks": plan.ranks, "threads": plan.threads, "seed": plan.seed, "looks": LOOKS, "alarms": alarms})
    count = sum(len(row["alarms"]) for row in rows)
    found = {"seconds": options.healthy, "looks": LOOKS * len(rows), "false_alarms": count}
    print(json.dumps({**found, "alarms": [row for row in rows if row["alarms"]]}, indent=1))
    write(options.output, {**head("healthy", 4, "shm"), "seed": options.seed, **found, "rows": rows})
    return int(count > 0)


def main() -> int:
    """Do one or the other."""
    parser = command_line(__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--healthy", type=float, default=0.0, help="look at healthy jobs for so many seconds instead")
    parser.add_argument("--kinds", type=lambda text: tuple(text.split(",")), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--first", type=int, default=0, help="the number of the first fault")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--graphs", action="store_true", help="two ranks that replay CUDA graphs, see graph_hangs.py")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of --graphs")
    parser.add_argument("--pairs", type=int, default=1, help="of ranks, side by side, of --graphs")
    parser.add_argument("--seconds", type=float, default=240.0, help="after which --graphs begins no fault any more")
    options = parser.parse_args()
    if options.graphs:
        return graph_hangs.faults(options)
    return healthy(options) if options.healthy else faults(options)


if __name__ == "__main__":
    sys.exit(main())
