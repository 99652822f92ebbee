"""Mixtures that nobody planned: communicators, streams, graphs, sizes, types, products and late ranks, from a seed.

`benchmarks/mixtures.py` runs them for minutes.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from commlib.collectives import COLLECTIVES
from commlib.collectives.spec import Call
from commlib.communicator import Communicator
from commlib.plan import Plan
from tests.gpu.fresh import leave
from tests.gpu.steady import Steady, capture, first, most_elements, warm_up
from tests.limited import Limited

PIPES = {
    name: algorithm.name
    for name, spec in COLLECTIVES.items()
    for algorithm in spec.algorithms
    if algorithm.name == "lsa_pipe_exchange" and algorithm.kernel != "reduce"
}
NAMES = [name for name in COLLECTIVES if name != "barrier"]
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
DTYPES = [*FLOATS, torch.int32, torch.uint8, torch.int64, torch.float64]
REDOPS = ["sum", "max", "min", "prod"]  # the last one for integers, where it is exact
LOG2_BYTES = 24.5  # of the largest tensor: 24 MB
LOG2_SYMMETRIC = 22  # of one in symmetric memory, which has to have room for all
# Also by kernels of few blocks, and by copy engines; these have the largest kernels, and are twice as frequent.
LIMITED = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
SIDES = (1024, 2048, 4096)  # of the matrices that are multiplied
PLAYS = 4  # a communicator has twice as many
ROUNDS = 100
SEED, ROUND, SINCE, ROUNDS_DONE, CALLS, REPLAYS, LONGEST_S = range(7)  # the figures of a run; SINCE is 0 between rounds


@dataclass
class Play:
    """Calls of one communicator, one after the other; where there is a graph of them, it may be replayed instead."""

    at: int  # of its communicator
    calls: list[Steady]
    graph: torch.cuda.CUDAGraph | None = None


class Mixture:
    """Communicators, and calls of all kinds on them; every rank draws the same, but for when it comes late.

    Two communicators run side by side, in calls and replays; some graphs of the first one are older than the second.
    Every fourth seed has three, and no graphs: the library keeps their calls in order where it has to.
    """

    def __init__(self, comm: Communicator, seed: int, only: Sequence[str] = ()) -> None:
        self.draw = random.Random(seed)
        self.own = random.Random((seed, comm.rank).__hash__())
        # Messages are part of them where kernels of this library move these.
        moves = comm.explain("send_recv", 1 << 20).algorithm.startswith("lsa_")
        self.names = [name for name in only or (*NAMES, *LIMITED) if moves or name != "send_recv"]
        self.streams = [torch.cuda.Stream() for _ in range(3)]
        self.wanders = self.draw.random() < 0.5  # over them; else each communicator stays on its own
        self.factors = [torch.rand(side, side, device=comm.device).bfloat16() for side in SIDES]
        self.products = [torch.empty_like(factor) for factor in self.factors]
        for stream in self.streams:  # what is loaded at its first use, is loaded now
            for what in range(len(SIDES) + 1):
                self.keep_busy(stream, what)
        self.comms, self.plays = [comm], list[Play]()
        for at in (0, 1, 2, 0) if seed % 4 == 3 else (0, 1, 1, 0):
            if at == len(self.comms):
                part = comm.split(0, comm.rank)
                assert part is not None
                if self.draw.random() < 0.3 and torch.cuda.get_device_capability() >= (9, 0):
                    part.use(Plan.only(PIPES, base=part.plan))  # everything through pipes
                self.comms.append(part)
            for _ in range(PLAYS):
                count = self.draw.choice((1, 1, 1, 1, 2, 3, 4, 5))
                calls = [self.call(self.comms[at]) for _ in range(count)]
                with torch.cuda.stream(self.streams[at]):
                    warm_up(*calls)
                self.plays.append(Play(at, calls, None if seed % 4 == 3 else capture(*calls)))

    def call(self, comm: Communicator) -> Steady:
        name = self.draw.choice(self.names)
        spec = COLLECTIVES[name]
        dtype = self.draw.choice(FLOATS if spec.of_rows else DTYPES)
        redop = self.draw.choice(REDOPS[:3] if dtype.is_floating_point else REDOPS)
        in_place, symmetric = self.draw.random() < 0.3, self.draw.random() < 0.2
        most = LOG2_SYMMETRIC if symmetric else LOG2_BYTES
        elements = int(2 ** self.draw.uniform(self.draw.choice((0, most - 4)), most)) // dtype.itemsize
        count = elements * 64 // most_elements(spec, Call(0, comm.size, 64, dtype))
        count -= count % 16 * self.draw.randrange(2)
        limit = self.draw.choice((0, 0, 2, 8))
        shifts = self.draw.randrange(16), self.draw.randrange(16)
        return Steady(
            Limited(comm, limit) if limit and name in LIMITED else comm,
            name,
            max(count, 1),
            dtype,
            symmetric=symmetric,
            in_place=in_place and spec.has_in_place,
            shifts=self.draw.choice(((0, 0), shifts)),
            redop=redop if spec.reduces and not spec.of_rows else "sum",
        )

    def keep_busy(self, stream: torch.cuda.Stream, what: int) -> None:
        """Have a stream multiply matrices, which takes all multiprocessors, or sleep a moment."""
        with torch.cuda.stream(stream):
            if what < len(SIDES):
                torch.mm(self.factors[what], self.factors[what], out=self.products[what])
            else:
                torch.cuda._sleep(self.own.randint(1000, 300_000))

    def round(self, step: int, figures: torch.Tensor) -> str:
        """Some of the plays, each eagerly or from its graph, in one order on all ranks; some ranks come late."""
        chosen = self.draw.sample(self.plays, self.draw.randint(2, 8))
        graphs = [play.graph if self.draw.random() < 0.6 else None for play in chosen]
        # A communicator that replays stays on one stream for the round: nobody orders replays.
        places = self.draw.choices(self.streams, k=3) if self.wanders else self.streams
        bound = {play.at for play, graph in zip(chosen, graphs, strict=True) if graph or not self.wanders}
        drawn = self.draw.choices(self.streams, k=len(chosen))
        for call in (call for play in chosen for call in play.calls):
            call.load(step)
        torch.cuda.synchronize()
        for play, graph, anywhere in zip(chosen, graphs, drawn, strict=True):
            if self.own.random() < 0.1:
                time.sleep(self.own.random() * 2e-3)
            if self.own.random() < 0.6:
                self.keep_busy(self.own.choice(self.streams), self.own.randrange(2 * len(SIDES)))
            with torch.cuda.stream(places[play.at] if play.at in bound else anywhere):
                for run in [graph.replay] if graph else [call.run for call in play.calls]:
                    run()
        torch.cuda.synchronize()
        for comm in self.comms:
            comm.check()
        figures[CALLS] += sum(len(play.calls) for play in chosen)
        figures[REPLAYS] += sum(graph is not None for graph in graphs)
        return first(
            [
                f"{wrong}; it is call {number} of communicator {play.at}'s {'graph' if graph else 'eager ones'}"
                for play, graph in zip(chosen, graphs, strict=True)
                for number, call in enumerate(play.calls, 1)
                if (wrong := call.wrong(step))
            ]
        )

    def recapture(self) -> None:
        """A capture in the middle of everything; the oldest graphs stay."""
        play = self.draw.choice(self.plays[PLAYS:])
        if play.graph:
            play.graph = capture(*play.calls)


def figures_of(path: str) -> torch.Tensor:
    """The figures of a run, in a file that its rank 0 and the parent map."""
    return torch.from_file(path, shared=True, size=LONGEST_S + 1, dtype=torch.float64)


def mix(comm: Communicator, seed: int, rounds: int, path: str = "", only: Sequence[str] = ()) -> str:
    figures = figures_of(path) if path and comm.rank == 0 else torch.zeros(LONGEST_S + 1, dtype=torch.float64)
    mixture, found = Mixture(comm, seed, only), []
    for step in range(rounds):
        start = time.monotonic()
        figures[: SINCE + 1] = torch.tensor([seed, step, start], dtype=torch.float64)
        found.append(mixture.round(step, figures))
        figures[SINCE] = 0
        figures[ROUNDS_DONE] += 1
        figures[LONGEST_S] = max(float(figures[LONGEST_S]), time.monotonic() - start)
        if step % 10 == 9:
            mixture.recapture()
    mixture.plays.clear()
    leave(mixture.comms[1:])
    return first(found)
