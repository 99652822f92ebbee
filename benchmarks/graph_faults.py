"""What the ranks of graph_hangs.py do: replay graphs of random calls, and one of them does something wrong."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch

from commlib.communicator import Communicator
from commlib.debug.jobs import look
from commlib.errors import CommError
from commlib.tools.timing.graph import capture

REPLAYED = ("leaves out replays", "replays another graph", "replays once more", "replays once less")
CAPTURED = (
    "captures another size",
    "captures another type",
    "captures another order",
    "captures less",
    "captures more",
)
HOST = ("loops", "is slow", "SIGSTOP")
KINDS = (*REPLAYED, *CAPTURED, *HOST, "SIGKILL")  # the last one ends the ranks
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")  # in which every rank waits for each
DTYPES = (torch.float32, torch.bfloat16)
COUNTS = (1, 1000, 20_000)
GRAPHS, FIRST = 3, 100  # graphs of a job, and elements of the first call of the first one
NAP_S, POLL_S = 0.3, 0.01


class Step(NamedTuple):
    """One call that all ranks of a communicator make."""

    comm: int
    op: str
    dtype: torch.dtype
    count: int

    @property
    def words(self) -> str:
        """As `commlib debug` begins to say it."""
        return self.op if self.op == "barrier" else f"{self.op} {str(self.dtype).removeprefix('torch.')}"


class Place(NamedTuple):
    """A call that a rank comes to: of a replay of a graph, or eager, where `graph` is 0."""

    step: Step
    graph: int
    replay: int
    at: int
    of: int

    @property
    def words(self) -> str:
        """As `commlib debug` says it."""
        return (
            f"call {self.at} of {self.of} in replay {self.replay} of graph {self.graph}"
            if self.graph
            else self.step.words
        )


@dataclass(frozen=True)
class Plan:
    """A job, and what goes wrong in it."""

    seed: int
    kind: str
    culprit: int
    turn: int  # at which it happens
    graph: int  # to which
    call: int  # of the graph

    def breaks(self, rank: int) -> bool:
        """Whether this rank is to do something wrong."""
        return rank == self.culprit


def drawn(draw: random.Random) -> Step:
    """Draw a call."""
    op = draw.choice(OPS)
    return Step(draw.choice((0, 0, 1)), op, draw.choice(DTYPES), draw.choice(COUNTS))


def graphs_of(plan: Plan, rank: int) -> list[list[Step]]:
    """Return the calls that a rank captures; each graph has a first call of its own."""
    draw = random.Random(f"graphs {plan.seed}")
    found = []
    for number in range(GRAPHS):
        first = Step(0, "all_reduce", torch.float32, FIRST + number)
        found.append([first, *(drawn(draw) for _ in range(draw.randint(3, 8)))])
    if plan.kind == "captures another order":
        found[plan.graph][1:3] = [Step(0, "all_reduce", torch.float32, 50), Step(0, "all_gather", torch.float32, 51)]
    elif plan.kind in CAPTURED:
        found[plan.graph][plan.call] = Step(0, "all_reduce", torch.float32, 60)
    if plan.breaks(rank):
        miscapture(plan, found[plan.graph])
    return found


def miscapture(plan: Plan, calls: list[Step]) -> None:
    """Change a graph as the culprit has it."""
    step = calls[plan.call]
    if plan.kind == "captures another size":
        calls[plan.call] = step._replace(count=step.count + 1)
    elif plan.kind == "captures another type":
        calls[plan.call] = step._replace(dtype=torch.bfloat16)
    elif plan.kind == "captures another order":
        calls[1], calls[2] = calls[2], calls[1]
    elif plan.kind == "captures less":
        del calls[plan.call]
    elif plan.kind == "captures more":
        calls.insert(plan.call, step._replace(count=77))


def turns(plan: Plan, rank: int) -> Iterator[list[int | Step]]:
    """Yield what a rank does, turn by turn: graphs to replay, by number, or a call to make."""
    turn = 0
    while True:
        draw = random.Random(f"{plan.seed} {turn}")
        graph, times = draw.randrange(GRAPHS), draw.randint(1, 4)
        there = turn - plan.turn if plan.kind in REPLAYED else -1
        if there in (0, 1):  # so that the turn after is another one
            graph, times = (plan.graph + there) % GRAPHS, 2
        made: list[int | Step] = [graph] * times
        if draw.random() < 0.3 and there not in (0, 1):
            made = [drawn(draw)]
        yield misdone(plan, graph) if there == 0 and plan.breaks(rank) else made
        turn += 1


def misdone(plan: Plan, graph: int) -> list[int | Step]:
    """Return what the culprit does instead of two replays."""
    made = {
        "leaves out replays": [],
        "replays another graph": [(graph + 2) % GRAPHS] * 2,
        "replays once more": [graph] * 3,
        "replays once less": [graph],
    }
    return list(made[plan.kind])


# --- what is expected


def places(plan: Plan, rank: int, comm: int) -> Iterator[Place]:
    """Yield the calls that the GPU of a rank comes to, on a communicator."""
    graphs = [[step for step in steps if step.comm == comm] for steps in graphs_of(plan, rank)]
    numbers = [sum(map(bool, graphs[: graph + 1])) for graph in range(GRAPHS)]
    replays = Counter[int]()
    made = turns(plan, rank)
    for turn in islice(made, plan.turn if plan.kind == "loops" and plan.breaks(rank) else plan.turn + 40):
        for one in turn:
            if isinstance(one, Step):
                yield from [Place(one, 0, 0, 0, 0)] * (one.comm == comm)
                continue
            replays[one] += 1
            for at, step in enumerate(graphs[one], 1):
                yield Place(step, numbers[one], replays[one], at, len(graphs[one]))


def captures(plan: Plan, rank: int, comm: int) -> list[Step]:
    """Return the calls that the program of a rank makes first, on a communicator."""
    return [step for steps in graphs_of(plan, rank) for step in steps if step.comm == comm]


def first_difference(right: Any, wrong: Any) -> tuple[int, Any] | None:
    """Return where two sequences part, from 0, and what the right one has there."""
    for number, (one, other) in enumerate(zip_longest(right, wrong)):
        if getattr(one, "step", one) != getattr(other, "step", other):
            return number, one
    return None


# --- a rank


def make(comm: Communicator, step: Step) -> Callable[[], object]:
    """Return a call, with tensors of its own."""
    x = torch.zeros(step.count, dtype=step.dtype, device=comm.device)
    many, more = (torch.zeros(comm.size * step.count, dtype=step.dtype, device=comm.device) for _ in range(2))
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: comm.all_reduce(x),
        "all_gather": lambda: comm.all_gather_into_tensor(many, x),
        "reduce_scatter": lambda: comm.reduce_scatter_tensor(x, many),
        "all_to_all": lambda: comm.all_to_all_single(many, more),
        "barrier": comm.barrier,
    }
    return calls[step.op]


class Listed:
    """In the place of a graph where there is no GPU."""

    def __init__(self, calls: list[Callable[[], object]]) -> None:
        self._calls = calls

    def replay(self) -> None:
        """Make the calls."""
        for call in self._calls:
            call()

    def reset(self) -> None:
        """There is nothing to give back."""


def wait(comm: Communicator) -> None:
    """Wait for the GPU, if there is one."""
    if comm.device.type == "cuda":
        torch.cuda.synchronize()


def warm_up(comm: Communicator) -> None:
    """Make every kind of call once, so that its kernel is there."""
    for op in OPS:
        for dtype in DTYPES:
            for count in COUNTS:
                make(comm, Step(0, op, dtype, count))()
    wait(comm)


class Work:
    """The job on a rank, from its communicators on."""

    def __init__(self, comm: Communicator, plan: Plan, folder: Path) -> None:
        made = (comm.split(0), comm.split(0, -comm.rank))
        self.comms = [part for part in made if part is not None]
        self.rank, self.plan, self.folder = comm.rank, plan, folder
        self.over, self.tensors = threading.Event(), list[Any]()

    def run(self) -> None:
        """Work until the maker has seen enough, then leave nothing behind."""
        graphs: list[Any] = []
        watcher = threading.Thread(target=self._watch)
        watcher.start()
        try:
            with suppress(CommError, ValueError):
                self.say("bases", self.bases())
                graphs += [self.graph(steps) for steps in graphs_of(self.plan, self.rank)]
                self.work(graphs)
            self.over.wait()
        finally:
            self.over.set()
            watcher.join()
        for comm in self.comms:
            wait(comm)
            comm.close()
        for graph in graphs:
            graph.reset()

    def work(self, graphs: list[Any]) -> None:
        """Replay and call, until that fails or it is over."""
        host = self.plan.breaks(self.rank) and self.plan.kind in HOST
        for number, turn in enumerate(turns(self.plan, self.rank)):
            if number == self.plan.turn:
                self.say("broke", [])
                if host and self.plan.kind == "loops":
                    return endless(self.over)
            if host and self.plan.kind == "is slow" and number > self.plan.turn:
                time.sleep(NAP_S)
            for one in turn:
                if self.over.is_set():
                    return None
                if isinstance(one, Step):
                    make(self.comms[one.comm], one)()
                else:
                    graphs[one].replay()
            if number % 3 == 2:
                wait(self.comms[0])
        return None

    def graph(self, steps: list[Step]) -> Any:
        """Capture calls."""
        calls = [make(self.comms[step.comm], step) for step in steps]
        self.tensors.append(calls)  # which a graph does not hold
        return capture(calls) if self.comms[0].device.type == "cuda" else Listed(calls)

    def bases(self) -> list[tuple[int, int]]:
        """Return each communicator and the calls that it has made."""
        slots = {slot.id: slot for slot in look([os.getpid()]).ranks[os.getpid()].slots}
        ids = [comm.resources.recorded_as for comm in self.comms]
        return [(number, slots[number].entered) for number in ids]

    def say(self, what: str, data: Any) -> None:
        """Leave a file for the maker."""
        made = self.folder / f".{what}.{self.rank}"
        made.write_text(json.dumps(data), encoding="utf-8")
        made.rename(self.folder / f"{what}.{self.rank}")

    def _watch(self) -> None:
        while not self.over.is_set() and not (self.folder / "over").exists():
            time.sleep(POLL_S)
        self.over.set()
        for comm in self.comms:
            comm.abort("the fault has been looked at")


def endless(over: threading.Event) -> None:
    """Be busy until it is over."""
    while not over.is_set():
        pass


def be_rank(comm: Communicator, plan: Plan, folder: str) -> None:
    """Run a job that breaks."""
    Work(comm, plan, Path(folder)).run()
