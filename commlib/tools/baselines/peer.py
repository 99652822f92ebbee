"""What a peer is: another library that makes the same calls, started and ended by all ranks together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from commlib.collectives import Call, Collective
from commlib.communicator import Communicator
from commlib.errors import CommError, Unsupported
from commlib.tools.timing import Candidate, Empty, Prepare, Run, plain_on

START_S = 120.0  # for all ranks to join what a peer makes


class Peer:
    """One library on the ranks of a communicator; `reason` says why it makes no calls, "" if it does.

    The simplest kind has `calls`: for each collective that it has, a function of (x, out, call) that returns the call.
    """

    name: str
    title = ""  # of its line in a picture; "" for its name
    labels: tuple[str, ...]  # of its rows; more than one if it has several ways to make a call
    graph = False  # its calls will be captured
    reason = ""
    calls: Mapping[str, Prepare] = {}  # read only

    def start(self, comm: Communicator, graph: bool) -> None:
        """Join the other ranks, or note on all of them why it cannot; every rank calls it."""
        self.graph = graph
        # Only when all can: who waits in a peer's own start-up for a rank that cannot waits long.
        self.reason = _first(comm, self.lacks(comm))
        if self.reason:
            return
        failure = ""
        try:
            self.join(comm)
        except (CommError, RuntimeError, OSError, ValueError) as error:
            failure = f"{self.name} did not start: {(str(error).splitlines() or [''])[0][:200]}"
        self.reason = _first(comm, failure)

    def lacks(self, comm: Communicator) -> str:
        """Say what this rank lacks for it, "" for nothing; talks to nobody."""
        return ""

    def join(self, comm: Communicator) -> None:
        """Start together with the other ranks."""

    def stop(self) -> None:
        """Leave; what was not started is left as it is."""

    def candidates(self, comm: Communicator, collective: Collective, in_place: bool) -> list[Candidate]:
        """Return its ways to make the calls of a collective; what it lacks is refused before it is called."""
        return [Candidate(self.labels[0], self.prepare(collective, in_place), in_place, self.allocator(comm))]

    def refused(self, reason: str, in_place: bool) -> list[Candidate]:
        return [Candidate(label, refusing(reason), in_place) for label in self.labels]

    def allocator(self, comm: Communicator) -> Empty:
        """Return what allocates its tensors: the function of ours, so that all share them."""
        return plain_on(comm.device)

    def prepare(self, collective: Collective, in_place: bool) -> Prepare:
        """Return what makes a call ready, or raises Unsupported."""
        return self.calls.get(collective.name) or refusing(f"{self.name} has no {collective.name}")


def in_turn(*steps: Run) -> Run:
    def run() -> None:
        for step in steps:
            step()

    return steps[0] if len(steps) == 1 else run


def averaged(out: torch.Tensor, call: Call, reduce: Run) -> Run:
    """Add the division of an average to a sum, where the library has no average and its users divide."""
    if call.redop != "avg":
        return reduce
    rounding = {} if out.is_floating_point() else {"rounding_mode": "trunc"}
    return in_turn(reduce, partial(out.div_, call.size, **rounding))


def neighbours(call: Call) -> tuple[int, int]:
    """Return whom a rank sends to in a ring, and whom it receives from."""
    return (call.rank + 1) % call.size, (call.rank - 1) % call.size


def refusing(reason: str) -> Prepare:
    """Return the `prepare` of what cannot be called at all."""

    def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
        raise Unsupported(reason)

    return prepare


def _first(comm: Communicator, reason: str) -> str:
    return next((text for text in comm.all_gather_object(reason) if text), "")
