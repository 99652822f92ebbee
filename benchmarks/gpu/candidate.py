"""Candidate: one way to make a call, ours or a peer's; Memory: where its tensors lie; Entry: what it took."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from case import DTYPE, Case

from commlib.communicator import Communicator
from commlib.errors import CommError, Unsupported

Run = Callable[[], object]
BUFFERS = 3  # in rotation, so that no call finds its own last result in the cache


class Memory:
    """Tensors of one kind of memory: a few large ones, of which each size takes the beginning.

    Symmetric memory is registered by all ranks together: they take the same names in the same order.
    """

    def __init__(self, allocate: Callable[[int], torch.Tensor], max_bytes: int) -> None:
        self._allocate, self._elements = allocate, max_bytes // DTYPE.itemsize
        self._whole: dict[str, torch.Tensor] = {}

    def take(self, name: str, elements: int) -> torch.Tensor:
        """Return the first `elements` of the tensor of that name."""
        if name not in self._whole:
            self._whole[name] = self._allocate(self._elements)
        return self._whole[name][:elements]

    def clear(self) -> None:
        """Forget all tensors."""
        self._whole.clear()


@dataclass(frozen=True)
class Candidate:
    """One way to make a call.

    `make(x, out, case)` returns what is timed, for the stream that is current; `enter` runs before that, outside
    the clock. `reason` says why it cannot run at all.
    """

    label: str
    make: Callable[[torch.Tensor, torch.Tensor, Case], Run] | None = None
    memory: Memory | None = None
    in_place: bool = False
    ours: bool = False
    variant: bool = False  # of a sweep: not a column of the table
    enter: Callable[[], object] = lambda: None
    refuses: Callable[[Case], str] = lambda case: ""
    algorithm: str = ""
    params: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""


class Entry:
    """A candidate with its buffers, and what it took so far on this rank."""

    def __init__(self, candidate: Candidate, case: Case) -> None:
        self.candidate, self.case = candidate, case
        self.reason = candidate.reason or candidate.refuses(case)
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.graph: Any = None
        self.calls = 0  # of one block
        self.times_s: list[float] = []  # per call
        self.host_s: list[float] = []  # per call, eager only
        self.wrong = 0

    def attempt(self, step: Callable[[Entry], None]) -> None:
        """Do a step; an error becomes the reason why this candidate is left out."""
        if self.reason:
            return
        try:
            step(self)
        except Exception as error:  # whatever a peer raises is why it is left out
            lines = str(error).strip().splitlines() or [""]
            self.reason = f"{type(error).__name__}: {lines[0][:300]}"

    def allocate(self) -> None:
        """Take this candidate's rotating buffers."""
        memory, (elements_in, elements_out) = self.candidate.memory, self.case.elements
        if memory is None:
            raise Unsupported("no memory of its kind")
        for at in range(BUFFERS):
            x = memory.take(f"in{at}", elements_in)
            out = x if self.candidate.in_place else memory.take(f"out{at}", elements_out)
            self.pairs.append((x, out))

    def runs(self) -> list[Run]:
        """Return one call per buffer, for the stream that is current."""
        assert self.candidate.make is not None
        return [self.candidate.make(x, out, self.case) for x, out in self.pairs]

    def row(self) -> dict[str, Any]:
        """Return the result as it stands in the JSON: µs per call, the slowest rank's."""
        candidate = self.candidate
        row: dict[str, Any] = {
            "op": self.case.op,
            "bytes": self.case.num_bytes,
            "candidate": candidate.label,
            "ours": candidate.ours,
            "variant": candidate.variant,
            "in_place": candidate.in_place,
        }
        if candidate.algorithm:
            row["algorithm"] = candidate.algorithm
        if candidate.params:
            row["params"] = dict(candidate.params)
        if self.reason:
            return {**row, "skipped": self.reason}
        row |= {"wrong": self.wrong, "calls": self.calls, "blocks": len(self.times_s), **_quartiles(self.times_s, "")}
        return row | _quartiles(self.host_s, "host_") if self.host_s else row


def checked(run: Run) -> None:
    """Make a call outside the clock; a C function's code is an error unless it is 0."""
    code = run()
    if isinstance(code, int) and code != 0:
        raise CommError(f"the call returned code {code}")


def agree(comm: Communicator, entries: Sequence[Entry]) -> list[Entry]:
    """Leave out on all ranks what one rank cannot run: it would be waited for. Return the rest."""
    everyone = comm.all_gather_object([entry.reason for entry in entries])
    for entry, of_ranks in zip(entries, zip(*everyone, strict=True), strict=True):
        failed = [f"rank {rank}: {reason}" for rank, reason in enumerate(of_ranks) if reason]
        entry.reason = "" if not failed else of_ranks[0] if len(set(of_ranks)) == 1 else failed[0]
    return [entry for entry in entries if not entry.reason]


def combine(comm: Communicator, entries: Sequence[Entry]) -> None:
    """Make every rank's times the slowest rank's, and its wrong elements everybody's."""
    everyone = comm.all_gather_object([(entry.times_s, entry.host_s, entry.wrong) for entry in entries])
    for at, entry in enumerate(entries):
        times, host, wrong = zip(*(of_rank[at] for of_rank in everyone), strict=True)
        entry.times_s = [max(block) for block in zip(*times, strict=True)]
        entry.host_s = [max(block) for block in zip(*host, strict=True)]
        entry.wrong = sum(wrong)


def _quartiles(times_s: Sequence[float], prefix: str) -> dict[str, float]:
    ordered = sorted(times_s)
    low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.25, 0.75))
    values = {"min": ordered[0], "p25": low, "p50": statistics.median(ordered), "p75": high}
    return {f"{prefix}{name}_us": round(value * 1e6, 3) for name, value in values.items()}
