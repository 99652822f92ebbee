"""Jobs: processes whose records have communicators in common, found without any preparation, at one moment."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from commlib.debug.asking import Host, ask_all, other_hosts
from commlib.debug.card import Card
from commlib.debug.kept import GPU, Slot
from commlib.debug.process import Process, command_of, process
from commlib.debug.record import NAME, Record, Taken, descriptors, opened, records_of
from commlib.debug.stacks import Stack, ask
from commlib.debug.starting import Starting, starting_ranks
from commlib.debug.unsaid import add_waits
from commlib.users import own_user

SOON_S = 0.5  # after a second look, a third may come


@dataclass
class Rank:
    """A process of a job; one that is gone has no slots, and its peers say who it was."""

    process: Process
    slots: list[Slot] = field(default_factory=list)
    started_by: int = 0
    number: int = -1  # in the largest communicator
    stacks: list[Stack] = field(default_factory=list)  # of the main thread first
    collects: int = 0  # the thread in Python's garbage collection
    unrecorded: int = 0  # open communicators that its record has no room for
    card: Card | None = None  # of one on another host

    @property
    def pid(self) -> int:
        """Its process; of one on another host, a number that stands for it."""
        return self.process.pid

    @property
    def place(self) -> str:
        """Its process, and its host if that is another one: '4711' or 'node2:4711'."""
        return str(self.pid) if self.card is None else f"{self.card.host}:{self.card.pid}"

    @property
    def silent(self) -> bool:
        """Whether it is on a host that has not answered."""
        return self.process.state == "?"

    @property
    def orphan(self) -> bool:
        """Whether the process that started it has ended."""
        return not self.process.gone and self.started_by not in (0, 1, self.process.parent)

    def slot(self, communicator: int) -> Slot | None:
        """Return its part of a communicator."""
        return next((slot for slot in self.slots if slot.id == communicator), None)

    def stack(self, thread: int) -> Stack | None:
        """Return the stack of a thread of the program, else of the main one."""
        asked = (one for one in self.stacks if one.thread == thread and not one.is_ours)
        return next(asked, next(iter(self.stacks), None))

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
        here = (rank for rank in self.ranks.values() if rank.slots and rank.pid > 0)
        return min(here, key=lambda rank: rank.number).pid

    @cached_property
    def communicators(self) -> dict[int, list[Slot]]:
        """The open ones, in the order in which they were made, with their slots."""
        found: dict[int, list[Slot]] = {}
        for rank in self.ranks.values():
            for slot in rank.slots:
                found.setdefault(slot.id, []).append(slot)
        opened = sorted(found.items(), key=lambda item: min(slot.opened_ns for slot in item[1]))
        return {number: slots for number, slots in opened if any(not slot.closed for slot in slots)}

    @property
    def command(self) -> str:
        """The command line of its first rank."""
        return command_of(self.number)

    def seconds_since(self, ns: int) -> float:
        """Return how long ago that was; the clocks of other hosts are known to some milliseconds."""
        return max(self.at_ns - ns, 0) / 1e9

    def name(self, slot: Slot, peer: int) -> int:
        """Return the number of a rank of a communicator in the whole job."""
        rank = self.ranks.get(slot.peers[peer].pid)
        return rank.number if rank is not None and rank.number >= 0 else slot.peers[peer].name

    def ask_stacks(self, pids: Collection[int]) -> None:
        """Have these ranks say where their threads are."""
        ask_stacks([self.ranks[pid] for pid in pids if pid in self.ranks])


def ask_stacks(ranks: Iterable[Rank]) -> None:
    """Have ranks, of several jobs maybe, say where their threads are, all at once."""
    can = {rank.pid: rank for rank in ranks if not rank.process.halted and rank.pid > 0}
    for pid, stacks in ask({pid: rank.threads for pid, rank in can.items()}).items():
        can[pid].stacks = [replace(stack, collects=stack.thread == can[pid].collects) for stack in stacks]


def _main_slot(slots: Iterable[Slot]) -> Slot:
    return min(slots, key=lambda slot: (slot.closed, -slot.world, slot.opened_ns))


def look(pids: Iterable[int]) -> Job:
    """Read the records of these processes; peers that they name, and that have none, are gone."""
    records = [record for pid in pids for record in records_of(pid)]
    try:
        return job_of(records)
    finally:
        for record in records:
            record.close()


def job_of(records: Sequence[Record]) -> Job:
    """Say what the processes of these records are in now; peers that have none are gone."""
    return _job(_now(records))


class _Moment(NamedTuple):
    """What records held at a moment."""

    at_ns: int
    taken: list[tuple[Record, Taken, Process]]


def _now(records: Sequence[Record]) -> _Moment:
    taken = [(record, record.taken()) for record in records]  # all at one moment; to read them takes longer
    return _Moment(time.monotonic_ns(), [(record, then, process(record.pid)) for record, then in taken])


def _job(moment: _Moment, hosts: Sequence[Host] = (), which: int = -1) -> Job:
    """Return the job at a moment, which is one of those at which other hosts have said what their ranks are in."""
    ranks: dict[int, Rank] = {}
    for record, then, now in moment.taken:
        with suppress(OSError):
            rank = Rank(now, record.slots(then), record.parent)
            rank.collects, rank.unrecorded = record.collects(then), record.unrecorded(then)
            ranks[record.pid] = rank
    cards = {card.number: replace(card, key="") for host in hosts for card in host.cards}  # the key is no news
    for seen in [seen for host in hosts if host.moments for seen in host.moments[which]]:
        card = cards.get(seen.process.pid)
        ranks[seen.process.pid] = Rank(seen.process, seen.slots, seen.started_by, stacks=seen.stacks, card=card)
    for rank in [rank for rank in ranks.values() if rank.slots]:
        main = _main_slot(rank.slots)
        rank.number = main.peers[main.rank].name
        for slot in rank.slots:
            for peer in slot.peers:
                if not slot.closed and peer.pid not in ranks:
                    number = peer.name if slot is main else -1
                    ranks[peer.pid] = Rank(process(peer.pid), number=number, card=cards.get(peer.pid))
    add_waits(ranks)
    return Job(ranks, moment.at_ns)


def _pids() -> Iterator[int]:
    user = own_user()
    with os.scandir("/proc") as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.name.isdecimal() and (user == 0 or entry.stat().st_uid == user):
                    yield int(entry.name)


def jobs_here(wanted: int | None = None) -> list[list[Record]]:
    """Return the records of each job of this user on this host; of `wanted`, a process of a job or above it."""
    records = [record for pid in _pids() for record in records_of(pid)]
    sets: list[tuple[set[int], list[Record]]] = []
    for record in records:
        ids, mine = record.open_communicators(), [record]
        if not ids:
            record.close()
            continue
        for other in [other for other in sets if other[0] & ids]:
            sets.remove(other)
            ids, mine = ids | other[0], [*other[1], *mine]
        sets.append((ids, mine))
    found = [sorted(mine, key=lambda record: record.pid) for _, mine in sets]
    if wanted is None:
        return found
    chosen = [mine for mine in found if any(wanted in _above(record.pid) for record in mine)]
    for record in [record for mine in found if mine not in chosen for record in mine]:
        record.close()
    return chosen


def starting_here(wanted: int | None = None) -> list[Starting]:
    """Return the ranks that wait in init(): all of this user on this host, or those of `wanted` and below it."""
    found = starting_ranks(pid for pid in _pids() if wanted is None or wanted in _above(pid))
    return sorted(found, key=lambda one: one.pid)


def why_none(wanted: int | None) -> str:
    """Say why no job was found, and what to do."""
    if wanted is not None:
        try:
            owner = Path(f"/proc/{wanted}").stat().st_uid
        except OSError:
            return f"there is no process {wanted} on this host"
        if own_user() not in (0, owner):
            return f"process {wanted} belongs to another user (number {owner}); run this as that user, or as root"
    below = (pid for pid in _pids() if wanted is None or wanted in _above(pid))
    if why := next(filter(None, map(_why_passed_over, below)), ""):
        return why
    if wanted is None:
        return (
            "no process of this user on this host has a communicator, or waits in init() (other users' jobs: as root)"
        )
    return f"neither process {wanted} nor a process below it has a communicator, or waits in init()"


def _why_passed_over(pid: int) -> str:
    """Say why a process that has a record is none of a job's; empty: it has none, or it is."""
    for fd in descriptors(pid, NAME):
        record = opened(fd)
        if record is None:
            return f"process {pid} runs another version of commlib; use the `commlib` of its environment"
        record.close()
        if record.pid == pid:
            continue
        if _namespace(pid) != _namespace(os.getpid()):
            return f"process {pid} is in a container (another PID namespace); run commlib debug in there"
        return f"process {pid} is no rank: it was forked from rank process {record.pid}, or from a child of that"
    return ""


def _namespace(pid: int) -> Path | None:
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/pid").readlink()
    return None


def _above(pid: int) -> Iterator[int]:
    """Yield a process and those that started it."""
    while pid > 0:
        yield pid
        pid = process(pid).parent


def moments(jobs: Sequence[Sequence[Record]], apart_s: float, sites: bool | None = None) -> list[tuple[Job, Job]]:
    """Look at jobs twice, at all of them in the same period: what both looks have in common, stands still.

    Ranks on other hosts are asked meanwhile; `sites`: whether they are to keep the place of each call from now on.
    """
    hosts = [other_hosts(records) for records in jobs]
    answered = ask_all([*chain(*hosts)], apart_s, sites)
    for record in chain(*jobs):
        record.watch_for(apart_s + SOON_S)
    befores = [_now(records) for records in jobs]
    time.sleep(apart_s)
    afters = [_now(records) for records in jobs]
    answered()
    looks = zip(befores, afters, hosts, strict=True)
    return [(_job(before, others, 0), _job(after, others, 1)) for before, after, others in looks]
