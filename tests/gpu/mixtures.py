"""Mixtures that nobody planned: communicators, streams, graphs, sizes, types and late ranks, drawn from a seed.

    python -m tests.gpu.mixtures 600 -o mixtures.json

runs one after the other for so many seconds, and says of the first one with a wrong value or an error which it was.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import torch

from commlib.collectives import COLLECTIVES
from commlib.communicator import Communicator
from commlib.plan import Plan
from commlib.report import files
from commlib.report.formats import json_text
from commlib.testing import RankError, Ranks
from commlib.timing import fingerprint
from tests.gpu.steady import Steady, capture, first, most_elements, warm_up
from tests.limited import Limited

PIPES = {
    name: algorithm.name
    for name, spec in COLLECTIVES.items()
    for algorithm in spec.algorithms
    if algorithm.name == "lsa_pipe_exchange" and algorithm.kernel == "all_to_all"
}
NAMES = [name for name in COLLECTIVES if name != "barrier"]
DTYPES = [torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.float64]
LOG2_BYTES = 24.5  # of the largest tensor: 24 MB
LOG2_SYMMETRIC = 22  # of one in symmetric memory, which has to have room for all
LIMITED = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")  # by kernels of few blocks, and by copy engines
GRAPH_BYTES = 64 << 10  # of a captured call: nobody orders replays, so what runs beside them must fit on the GPU
CALLS = 16
ROUNDS = 60


class Mixture:
    """Communicators with a stream each, and calls of all kinds on them; every rank draws the same."""

    def __init__(self, comm: Communicator, seed: int) -> None:
        self.draw = random.Random(seed)
        self.own = random.Random((seed, comm.rank).__hash__())
        made = [comm.split(0, comm.rank) for _ in range(2)]
        self.comms = [comm, *(part for part in made if part is not None)]
        if torch.cuda.get_device_capability() >= (9, 0):  # one of them moves everything through pipes
            self.comms[-1].use(Plan.only(PIPES, base=comm.plan))
        # Messages are part of them where kernels of this library move these.
        moves = comm.explain("send_recv", 1 << 20).algorithm.startswith("lsa_")
        self.names = NAMES if moves else [name for name in NAMES if name != "send_recv"]
        self.streams = [torch.cuda.Stream() for _ in self.comms]
        self.calls = [self.call(number) for number in range(CALLS)]
        self.stream_of = {call: self.streams[number % 3] for number, call in enumerate(self.calls)}
        warm_up(*self.calls)
        self.graphs = {call: capture(call) for call in self.calls if most_bytes(call) <= GRAPH_BYTES}

    def call(self, number: int) -> Steady:
        name = self.draw.choice(self.names)
        dtype = self.draw.choice(DTYPES[:2] if COLLECTIVES[name].of_rows else DTYPES)
        symmetric = self.draw.random() < 0.3
        elements = int(2 ** self.draw.uniform(0, LOG2_SYMMETRIC if symmetric else LOG2_BYTES)) // dtype.itemsize
        blocks = (
            self.comms[0].size if name in ("all_gather", "all_to_all", "gather", "scatter", "reduce_scatter") else 1
        )
        limit, shift = self.draw.choice((0, 0, 2, 8)), self.draw.randint(0, 3)
        comm: Communicator | Limited = self.comms[number % 3]
        if limit and name in LIMITED and dtype in DTYPES[:2]:
            comm = Limited(self.comms[number % 3], limit)
        return Steady(comm, name, max(elements // blocks, 1), dtype, symmetric=symmetric, shifts=(shift, 0))

    def round(self, step: int) -> str:
        """Some of the calls, each eagerly or from its graph, in one order on all ranks; some ranks come late."""
        among = list(self.graphs) if step % 2 and len(self.graphs) > 1 else self.calls
        chosen = self.draw.sample(among, self.draw.randint(2, min(len(among), 8)))
        replays = all(call in self.graphs for call in chosen)
        replayed = [replays and self.draw.random() < 0.5 for _ in chosen]
        for call in chosen:
            call.load(step)
        torch.cuda.synchronize()
        for call, from_graph in zip(chosen, replayed, strict=True):
            if self.own.random() < 0.1:
                time.sleep(self.own.random() * 2e-3)
            with torch.cuda.stream(self.stream_of[call]):
                if self.own.random() < 0.3:
                    torch.cuda._sleep(self.own.randint(1000, 300_000))
                self.graphs[call].replay() if from_graph else call.run()
        torch.cuda.synchronize()
        return first([call.wrong(step) for call in chosen])

    def recapture(self) -> None:
        """A capture in the middle of everything."""
        call = self.draw.choice(list(self.graphs) or self.calls)
        if call in self.graphs:
            self.graphs[call] = capture(call)


def most_bytes(call: Steady) -> int:
    """The largest tensor of a call on any rank: all ranks must draw the same."""
    return most_elements(call.spec, call.call) * call.call.dtype.itemsize


def mix(comm: Communicator, seed: int, rounds: int) -> str:
    mixture = Mixture(comm, seed)
    found = []
    for step in range(rounds):
        found.append(mixture.round(step))
        if step % 10 == 9:
            mixture.recapture()
    mixture.graphs.clear()
    for part in mixture.comms[1:]:
        part.barrier()
        part.close()
    return first(found)


def go_on(ranks: Ranks, seconds: float, seed: int) -> tuple[int, str]:
    """Run mixtures from a seed on, until the time is over or one fails: how many did not, and what was wrong."""
    end, done = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        try:
            wrong = first(ranks.run(mix, seed + done, ROUNDS))
        except RankError as error:
            wrong = str(error)
        if wrong:
            return done, wrong
        done += 1
    return done, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--seed", type=int, default=1000, help="of the first one; the next ones follow")
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count())
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    with Ranks(options.ranks, backend="nccl", timeout_s=30.0, max_bytes=64 << 20, deadline_s=120.0) as ranks:
        start = time.monotonic()
        done, wrong = go_on(ranks, options.seconds, options.seed)
        took = time.monotonic() - start
    print(f"{done} mixtures of {ROUNDS} rounds in {took:.0f} s, seeds {options.seed} to {options.seed + done - 1}")
    if wrong:
        print(f"seed {options.seed + done}: {wrong}", file=sys.stderr)
    if options.output:
        row = {"seed": options.seed, "mixtures": done, "rounds": ROUNDS, "seconds": round(took), "wrong": wrong}
        document = {
            "schema": "commlib.mixtures",
            "version": 1,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": " ".join(["python -m tests.gpu.mixtures", *sys.argv[1:]]),
            "fingerprint": fingerprint("nccl"),
            "ranks": options.ranks,
            "rows": [row],
        }
        files.write(options.output, json_text(document))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
