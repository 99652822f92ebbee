"""Jobs: processes whose records have communicators in common, at one moment, and what the kernel knows of each."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from commlib.debug.record import GPU, Record, Slot, Snapshot, Wait, records_of
from commlib.debug.stacks import Stack, ask

_TICKS = os.sysconf("SC_CLK_TCK")
_STATES = {
    "T": "stopped by a signal (SIGSTOP); `kill -CONT` lets it go on",
    "t": "stopped by a debugger",
    "Z": "dead: it has ended, and its parent has not asked how",
    "X": "dead",
    "D": "waiting in the kernel where no signal reaches it (a disk, a file server, the driver)",
}

SOON_S = 0.5  # after a second look, a third may come


@dataclass(frozen=True)
class Process:
    pid: int
    state: str = "X"  # the kernel's letter
    core: int = -1
    parent: int = 0
    cpu_s: float = 0.0
    memory_mib: int = 0
    waits_in: str = ""  # the kernel's function
    at_s: float = 0.0

    @property
    def gone(self) -> bool:
        return self.state in "ZX"

    @property
    def halted(self) -> str:
        return _STATES.get(self.state, "")

    def busy_since(self, before: Process) -> float:
        return (self.cpu_s - before.cpu_s) / max(self.at_s - before.at_s, 1e-3)


def process(pid: int) -> Process:
    """Look at one; one that is not there is gone. Of those elsewhere, below 1, nothing is known."""
    if pid < 1:
        return Process(pid, state="?")
    fields = _stat(pid)
    if not fields:
        return Process(pid, at_s=time.monotonic())
    return Process(
        pid,
        state=fields[0],
        core=int(fields[36]),
        parent=int(fields[1]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        memory_mib=int(fields[21]) * os.sysconf("SC_PAGE_SIZE") >> 20,
        waits_in=_read(f"/proc/{pid}/wchan"),
        at_s=time.monotonic(),
    )


def state_of(pid: int) -> str:
    return next(iter(_stat(pid)), "X")


def _stat(pid: int) -> list[str]:
    return _read(f"/proc/{pid}/stat").rpartition(") ")[2].split()


def command_of(pid: int) -> str:
    return " ".join(_read(f"/proc/{pid}/cmdline").split("\0")).strip()


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""


@dataclass
class Rank:
    """A process of a job; one that is gone has no slots, and its peers say who it was."""

    process: Process
    slots: list[Slot] = field(default_factory=list)
    started_by: int = 0
    number: int = -1  # in the largest communicator
    stacks: list[Stack] = field(default_factory=list)  # of the main thread first
    unrecorded: int = 0  # open communicators that its record has no room for

    @property
    def pid(self) -> int:
        """Its process; of one elsewhere, a number below zero that stands for it."""
        return self.process.pid

    @property
    def elsewhere(self) -> bool:
        """Whether it is on another host, or in another PID namespace."""
        return self.pid < 0

    def slot(self, communicator: int) -> Slot | None:
        return next((slot for slot in self.slots if slot.id == communicator), None)

    def stack(self, thread: int) -> Stack | None:
        """Return the stack of a thread of the program, else of the main one."""
        wanted = (one for one in self.stacks if one.thread == thread and not one.is_ours)
        return next(wanted, next(iter(self.stacks), None))

    @property
    def threads(self) -> set[int]:
        """Those that wait, or have made the last call of a communicator."""
        made = [call.thread for slot in self.slots if (call := slot.calls.get(slot.entered))]
        return {*made, *(wait.thread for slot in self.slots for wait in slot.waits)} - {GPU}


@dataclass
class Job:
    """Ranks by process, as they were at one moment."""

    ranks: dict[int, Rank]
    at_ns: int

    @property
    def number(self) -> int:
        """The process of its first rank that lives, by which the job is called."""
        return min((rank for rank in self.ranks.values() if rank.slots), key=lambda rank: rank.number).pid

    @cached_property
    def communicators(self) -> dict[int, list[Slot]]:
        """The open ones, in the order in which they were made, with their slots."""
        by_id: dict[int, list[Slot]] = {}
        for rank in self.ranks.values():
            for slot in rank.slots:
                by_id.setdefault(slot.id, []).append(slot)
        ordered = sorted(by_id.items(), key=lambda item: min(slot.opened_ns for slot in item[1]))
        return {number: slots for number, slots in ordered if any(not slot.closed for slot in slots)}

    @property
    def command(self) -> str:
        return command_of(self.number)

    def seconds_since(self, ns: int) -> float:
        return max(self.at_ns - ns, 0) / 1e9

    def name(self, slot: Slot, peer: int) -> int:
        rank = self.ranks.get(slot.peers[peer].pid)
        return rank.number if rank is not None and rank.number >= 0 else slot.peers[peer].name

    def ask_stacks(self, pids: Collection[int]) -> None:
        ask_stacks([self.ranks[pid] for pid in pids if pid in self.ranks])


def ask_stacks(ranks: Iterable[Rank]) -> None:
    """Have ranks, of several jobs maybe, say where their threads are, all at once."""
    can = {rank.pid: rank for rank in ranks if not rank.process.halted and not rank.elsewhere}
    for pid, stacks in ask({pid: rank.threads for pid, rank in can.items()}).items():
        can[pid].stacks = stacks


def look(pids: Iterable[int]) -> Job:
    """Read the records of these processes; peers that they name, and that have none, are gone."""
    return job_of([record for pid in pids for record in records_of(pid)])


def job_of(records: Sequence[Record]) -> Job:
    """Return what the processes of these records are in now; peers that have none are gone."""
    return _job(*_copied(records))


Copied = list[tuple[Record, Snapshot, Process]]


def _copied(records: Sequence[Record]) -> tuple[int, Copied]:
    """Copy all records at one moment, as to read them takes longer; return when that was."""
    snapshots = [(record, record.snapshot()) for record in records]
    return time.monotonic_ns(), [(record, snapshot, process(record.pid)) for record, snapshot in snapshots]


def _job(at_ns: int, copied: Copied) -> Job:
    ranks: dict[int, Rank] = {}
    for record, snapshot, now in copied:
        header = record.header
        ranks[record.pid] = Rank(now, record.slots(snapshot), header.parent, unrecorded=header.unrecorded)
    for rank in [rank for rank in ranks.values() if rank.slots]:
        main = min(rank.slots, key=lambda slot: (slot.closed, -slot.world, slot.opened_ns))
        rank.number = main.peers[main.rank].name
        for slot in rank.slots:
            for peer in slot.peers:
                if not slot.closed and peer.pid not in ranks:
                    ranks[peer.pid] = Rank(process(peer.pid), number=peer.name if slot is main else -1)
    _infer_waits(ranks)
    return Job(ranks, at_ns)


def _infer_waits(ranks: Mapping[int, Rank]) -> None:
    """Add waits of calls that torch's groups make: they do not say for whom they wait, but the ranks' counts do."""
    waits = {
        (rank.pid, at): wait
        for rank in ranks.values()
        for at, slot in enumerate(rank.slots)
        if slot.by_torch and not slot.closed and not slot.waits and (wait := _inferred_wait(ranks, slot)) is not None
    }
    for (pid, at), wait in waits.items():
        ranks[pid].slots[at] = replace(ranks[pid].slots[at], waits=(wait,))


def _inferred_wait(ranks: Mapping[int, Rank], slot: Slot) -> Wait | None:
    call = slot.calls.get(slot.entered)
    if call is None or not (slot.handed_over or slot.under_way):
        return None
    late = next(_late_peers(ranks, slot), None)
    return None if late is None else Wait(call.thread, late, call.number, call.entered_ns, 0)


def _late_peers(ranks: Mapping[int, Rank], slot: Slot) -> Iterator[int]:
    """Yield who has not come to a rank's call: the one that is furthest behind first; then who is gone, or halted."""
    there = {peer: ranks[known.pid] for peer, known in enumerate(slot.peers) if known.pid in ranks}
    slots = {peer: part for peer, rank in there.items() if (part := rank.slot(slot.id)) is not None}
    behind = [peer for peer, part in slots.items() if part.entered < slot.entered]
    yield from sorted(behind, key=lambda peer: (slots[peer].entered, peer))
    yield from (peer for peer, rank in there.items() if rank.process.gone and peer != slot.rank)
    if not slot.handed_over:
        yield from (peer for peer, rank in there.items() if rank.process.halted and peer != slot.rank)


def moments(jobs: Sequence[Sequence[Record]], apart_s: float) -> list[tuple[Job, Job]]:
    """Look at jobs twice, at all of them in the same period: what both looks have in common, stands still."""
    for record in chain(*jobs):
        record.watch_for(apart_s + SOON_S)
    befores = [_copied(records) for records in jobs]
    time.sleep(apart_s)
    afters = [_copied(records) for records in jobs]
    return [(_job(*before), _job(*after)) for before, after in zip(befores, afters, strict=True)]
