"""Calls that are waited for later: --window W messages in flight, as osu_bw; --overlap with computing.

A window is W messages of send_recv from each sender (osu_bw, osu_bibw, osu_mbw_mr). With overlap, an asynchronous call
is timed alone, then with matrix products that take as long between the call and its wait() (osu_iallreduce).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from commlib.collectives import COLLECTIVES, Call, Collective
from commlib.collectives.reference import ordered
from commlib.communicator import Communicator
from commlib.counts import counted
from commlib.tools.baselines.peer import Message, Peer
from commlib.tools.bench.result import Overlap
from commlib.tools.timing import Candidate, Measurement, Prepare, Protocol, Run, Started, measure

OP = "send_recv"
SYNC = "sync"  # behind the name of the algorithm whose calls return when their message may be changed
LARGEST = 1 << 20  # bytes of a message, unless more are asked for: a window of them has its own memory
# Rows and columns of the matrices that are multiplied: short on the device, but longer than the launch.
SIDES = {"cpu": 64, "cuda": 1024}
UNIT_CALLS, UNIT_TURNS = 100, 5  # calls of a block that a multiplication is timed by, and blocks
NOTE = (
    "overlap: time is that of the asynchronous call and its wait() alone; compute: products of matrices that take as "
    "long; both: the call, the products, wait(); overlap: how much of the call the products hid"
)


def window_asked(ops: Sequence[str], options: Mapping[str, Any], ranks: int | None) -> Window | None:
    """Return what --window and --pairs ask for; they are of eager calls of send_recv."""
    if options["overlap"] and options["graph"]:
        raise ValueError("--overlap times asynchronous calls of the host; leave --graph out")
    if not options["window"] and not options["pairs"]:
        return None
    flag = "--window" if options["window"] else "--pairs"
    if tuple(ops) != (OP,):
        raise ValueError(f"{flag} is of {OP} alone: commlib bench {OP} {flag}" + " 64" * (flag == "--window"))
    for other in ("graph", "overlap"):
        if options[other]:
            raise ValueError(f"{flag} times messages that the host starts; leave --{other} out")
    window = Window(options["window"] or 1, options["pairs"])
    if ranks is not None and (fault := window.fault(ranks)):
        raise ValueError(fault)
    return window


@dataclass(frozen=True)
class Window:
    """How many messages each sender has in flight; `pairs`: rank r sends to r + n/2, else each to the next one."""

    messages: int
    pairs: bool = False

    def senders(self, ranks: int) -> int:
        return ranks // 2 if self.pairs else ranks

    def peers(self, rank: int, ranks: int) -> tuple[int | None, int | None]:
        if not self.pairs:
            return (rank + 1) % ranks, (rank - 1) % ranks
        half = ranks // 2
        return (rank + half, None) if rank < half else (None, rank - half)

    def fault(self, ranks: int) -> str:
        if self.pairs and ranks % 2:
            return f"--pairs needs an even number of ranks, not {ranks}; the lower half sends to the upper half"
        return "--window needs ranks that send to each other: -n 2" if ranks == 1 else ""

    def collective(self) -> Collective:
        """Return send_recv with a window of messages for each call; its sizes are of one message."""
        return replace(COLLECTIVES[OP], shapes=self._shapes, reference=self._received, invoke=self._start)

    def of_peer(self, peer: Peer) -> Prepare:
        def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
            return peer.messages(self._messages(x, out, call))

        return prepare

    def figures(self, seconds: float, ranks: int) -> dict[str, Any]:
        rate = self.messages * self.senders(ranks) / seconds
        return {"window": self.messages, "pairs": self.pairs, "messages_s": round(rate, 1)}

    def note(self) -> str:
        whom = "rank r of the lower half to r + n/2" if self.pairs else "each rank to the next one"
        return (
            f"window: {counted(self.messages, 'message')} in flight, {whom}; time is that of all of them, algbw of "
            f"all senders together, busbw of one; {SYNC}: the same by calls that are not asynchronous"
        )

    def _shapes(self, call: Call) -> tuple[int, int]:
        after, before = self.peers(call.rank, call.size)
        whole = self.messages * call.count
        return whole * (after is not None), whole * (before is not None)

    def _received(self, call: Call, inputs: Sequence[torch.Tensor], fold: object) -> torch.Tensor | None:
        before = self.peers(call.rank, call.size)[1]
        return None if before is None else inputs[before]

    def _start(self, comm: Communicator, x: torch.Tensor, out: torch.Tensor, call: Call) -> None:
        for part, rank, sends in self._messages(x, out, call):
            (comm.send if sends else comm.recv)(part, rank)

    def _messages(self, x: torch.Tensor, out: torch.Tensor, call: Call) -> list[Message]:
        """Return tensor, partner and direction; every second rank receives first: on a stream, calls wait in line."""
        after, before = self.peers(call.rank, call.size)
        sends = [] if after is None else [(part, after, True) for part in x.split(call.count)]
        receives = [] if before is None else [(part, before, False) for part in out.split(call.count)]
        return sends + receives if call.rank % 2 == 0 else receives + sends


# --- overlap


@dataclass
class Overlapped(Measurement):
    """An asynchronous call alone, with the medians of what was measured beside it."""

    compute_s: float = 0.0
    both_s: float = 0.0

    def overlap(self) -> Overlap:
        share = 1 - (self.both_s - self.compute_s) / self.median_s
        both_us, compute_us = (round(seconds * 1e6, 4) for seconds in (self.both_s, self.compute_s))
        return Overlap(compute_us, both_us, round(min(max(share, 0.0), 1.0), 4))


class Compute:
    """Work for a device that needs no other rank: as many products of small matrices as fill a time."""

    def __init__(self, comm: Communicator) -> None:
        torch.set_num_threads(1)  # threads that share the rank's core would wait for each other
        side = SIDES[comm.device.type]
        self._a, self._b, self._out = (torch.ones(side, side, device=comm.device) for _ in range(3))
        self._unit_s = max(comm.all_gather_object(min(self._block_s() for _ in range(UNIT_TURNS)) / UNIT_CALLS))

    def lasting(self, seconds: float) -> Run:
        count = max(1, round(seconds / self._unit_s))
        return lambda: self._multiply(count)

    def _multiply(self, count: int) -> None:
        for _ in range(count):
            torch.mm(self._a, self._b, out=self._out)

    def _block_s(self) -> float:
        start = time.perf_counter()
        self._multiply(UNIT_CALLS)
        if self._out.device.type == "cuda":
            torch.cuda.synchronize(self._out.device)
        return time.perf_counter() - start


def started_by(peer: Peer, candidate: Candidate) -> Candidate:
    def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
        return Started([peer.later(candidate.prepare(x, out, call))])

    return replace(candidate, prepare=prepare)


def measure_overlap(
    comm: Communicator,
    asked: tuple[Collective, Call],
    candidates: Sequence[Candidate],
    protocol: Protocol,
    compute: Compute,
) -> list[Measurement]:
    """Time each asynchronous call alone, then beside work that takes as long; values are compared in both."""
    part = replace(protocol, budget_s=protocol.budget_s / 4)
    results = measure(comm, *asked, ordered, candidates, part)
    ready = [at for at, result in enumerate(results) if result.times_s]
    trios = [trio for at in ready for trio in _trio(candidates[at], compute.lasting(results[at].median_s))]
    timed = measure(comm, *asked, ordered, trios, replace(part, budget_s=3 * part.budget_s))
    for at, call, work, both in zip(ready, timed[::3], timed[1::3], timed[2::3], strict=True):
        if not (call.times_s and work.times_s and both.times_s):
            results[at] = Measurement(call.label, call.in_place, skipped=call.skipped or both.skipped)
            continue
        figures = {field.name: getattr(call, field.name) for field in fields(call)}
        figures["wrong"] = None if call.wrong is None else call.wrong + (both.wrong or 0)
        results[at] = Overlapped(**figures, compute_s=work.median_s, both_s=both.median_s)
    return results


def _trio(candidate: Candidate, work: Run) -> list[Candidate]:
    def beside(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
        started = candidate.prepare(x, out, call)
        assert isinstance(started, Started)
        return replace(started, beside=work)

    def nothing(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
        return work

    return [candidate, replace(candidate, prepare=nothing, checked=False), replace(candidate, prepare=beside)]
