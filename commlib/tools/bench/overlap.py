"""`commlib bench --overlap`: how much of an asynchronous call runs beside computing, as osu_iallreduce tells."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch

from commlib.collectives.reference import ordered
from commlib.tools.timing import Candidate, Measurement, Protocol, Run, Started, measure

if TYPE_CHECKING:
    from commlib.collectives import Call, Collective
    from commlib.communicator import Communicator
    from commlib.tools.baselines import Peer

# Rows and columns of the matrices that are multiplied: short on the device, but longer than the launch.
SIDES = {"cpu": 64, "cuda": 1024}
UNIT_CALLS, UNIT_TURNS = 100, 5  # calls of a block that a multiplication is timed by, and blocks
NOTE = (
    "overlap: time is that of the asynchronous call and its wait() alone; compute: products of matrices that take as "
    "long; both: the call, the products, wait(); overlap: how much of the call the products hid"
)


@dataclass
class Overlapped(Measurement):
    """An asynchronous call alone, with the medians of what was measured beside it."""

    compute_s: float = 0.0
    both_s: float = 0.0

    def figures(self) -> dict[str, Any]:
        """Return what a row says beside its times: of the call, the part that did not make computing longer."""
        share = 1 - (self.both_s - self.compute_s) / self.median_s
        times = {"compute_us": round(self.compute_s * 1e6, 4), "both_us": round(self.both_s * 1e6, 4)}
        return {"overlap": {**times, "share": round(min(max(share, 0.0), 1.0), 4)}}


class Compute:
    """Work for a device that needs no other rank: as many products of small matrices as fill a time."""

    def __init__(self, comm: Communicator) -> None:
        torch.set_num_threads(1)  # threads that share the rank's core would wait for each other
        side = SIDES[comm.device.type]
        self._a, self._b, self._out = (torch.ones(side, side, device=comm.device) for _ in range(3))
        self._unit_s = max(comm.all_gather_object(min(self._block_s() for _ in range(UNIT_TURNS)) / UNIT_CALLS))

    def lasting(self, seconds: float) -> Run:
        """Return work that takes about so long on the slowest rank."""
        count = max(1, round(seconds / self._unit_s))

        def run() -> None:
            for _ in range(count):
                torch.mm(self._a, self._b, out=self._out)

        return run

    def _block_s(self) -> float:
        on_gpu = self._out.device.type == "cuda"
        start = time.perf_counter()
        for _ in range(UNIT_CALLS):
            torch.mm(self._a, self._b, out=self._out)
        if on_gpu:
            torch.cuda.synchronize(self._out.device)
        return time.perf_counter() - start


def theirs(peer: Peer, candidate: Candidate) -> Candidate:
    """Return another library's candidate whose call is started, and waited for later."""

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
    alone = measure(comm, *asked, ordered, candidates, part)
    ready = [at for at, result in enumerate(alone) if result.times_s]
    trios = [trio for at in ready for trio in _trio(candidates[at], compute.lasting(alone[at].median_s))]
    found = measure(comm, *asked, ordered, trios, replace(part, budget_s=3 * part.budget_s))
    for at, call, work, both in zip(ready, found[::3], found[1::3], found[2::3], strict=True):
        if not (call.times_s and work.times_s and both.times_s):
            alone[at] = Measurement(call.label, call.in_place, skipped=call.skipped or both.skipped)
            continue
        figures = {field.name: getattr(call, field.name) for field in fields(call)}
        figures["wrong"] = None if call.wrong is None else call.wrong + (both.wrong or 0)
        alone[at] = Overlapped(**figures, compute_s=work.median_s, both_s=both.median_s)
    return alone


def _trio(candidate: Candidate, work: Run) -> list[Candidate]:
    """Return the call alone, the work alone, and the work between the call and its wait()."""

    def beside(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
        started = candidate.prepare(x, out, call)
        assert isinstance(started, Started)
        return replace(started, beside=work)

    def nothing(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
        return work

    return [candidate, replace(candidate, prepare=nothing, checked=False), replace(candidate, prepare=beside)]
