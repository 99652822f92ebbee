"""Samples: what the ranks of a job are in, looked at hundreds of times a second, straight in their memory.

The ranks do nothing for it: their records are mapped here, and read.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from commlib.debug.jobs import Job, job_of
from commlib.debug.kept import Call, Gpu, Slot
from commlib.debug.process import process
from commlib.debug.record import Record, is_wait

RATE = 500  # looks a second
MOST = 20_000  # looks at all: a long watch looks less often
PLACES, PLACES_S = 5, 1.0
WATCHED_S = 2.0  # so much longer ranks ask their GPUs often, as it takes a while to say where a late one is
COPY_S = 0.02  # between two copies of the last calls

Place = tuple[int, int]  # a process and a communicator
Kind = tuple[str, str, int, str]  # operation, type, elements, algorithm


class Look(NamedTuple):
    """What a rank is in, in a communicator, at one moment."""

    kind: Kind | None  # of the call that it is in
    peer: int  # that it waits for; -1: it waits for nobody
    since_ns: int


UNKNOWN: Kind = ("call", "", 0, "")
MESSAGE: Kind = ("send_recv", "", 0, "")
IDLE = Look(None, -1, 0)


@dataclass
class Watched:
    """A job before and after, and what was seen meanwhile: one entry of `looks` is one moment of all ranks."""

    before: Job
    job: Job
    looks: list[tuple[int, dict[Place, Look]]] = field(default_factory=list)
    calls: dict[Place, dict[int, Call]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it was watched."""
        return (self.job.at_ns - self.before.at_ns) / 1e9


def kind_of(call: Call) -> Kind:
    """Return what calls must have in common to be compared."""
    return call.op, call.dtype, call.count, call.algorithm


def kind_in_words(what: str) -> Kind:
    """Read 'all_reduce float32 max by lsa_ll_oneshot of 4096 bytes'."""
    called, _, rest = what.partition(" by ")
    algorithm, _, num_bytes = rest.partition(" of ")
    op, dtype = [*called.split(), ""][:2]
    bits = re.search(r"\d+", dtype)
    size = int(bits[0]) // 8 if bits else 1
    return op, dtype, int(num_bytes.split()[0]) // size if num_bytes else 0, algorithm


class _Eye:
    """Looks at one communicator of one rank."""

    def __init__(self, record: Record, at: int, slot: Slot, memory: mmap.mmap) -> None:
        self._record, self._memory, self._at = record, memory, at
        self.place = record.pid, slot.id
        kind = record.layout("Slot")
        start, self._wait, waits = kind.part("waits")
        self._waits = range(at + start, at + start + waits * self._wait.size, self._wait.size)
        self._on_gpu, self._on_shm = slot.backend == "nccl", slot.backend == "shm"
        self.rank, self.by_torch, self.entered = slot.rank, slot.by_torch, 0
        self.waits_since = 0
        self._calls, self._call, self._room = kind.part("calls" if self._on_shm else "entries")
        self._ends, self._end, _ = kind.part("ends")  # on GPUs there are none
        self._gpu, self._gpu_type, _ = kind.part("gpu")
        self._counts = [at + kind.place(name) for name in ("entered", "finished")]
        self._kinds: dict[tuple[int, int], Kind] = {}
        self.copies: list[tuple[bytes, bytes, bytes]] = []

    def look(self) -> Look:
        """Say what it is in now."""
        if self._on_gpu and (kernel := self._kernel()) is not None:
            return kernel
        self.entered, finished = (struct.unpack_from("=Q", self._memory, at)[0] for at in self._counts)
        entered = self.entered
        waits = [self._wait.read(self._memory, at) for at in self._waits if is_wait(self._thread(at))]
        oldest = min(waits, key=lambda wait: int(wait["since_ns"]), default=None)
        if oldest is None and entered <= finished:
            return IDLE
        if oldest is not None and self._stopped():  # what it waits for may have come
            return Look(UNKNOWN, -1, 0)
        kind = MESSAGE if oldest is not None and oldest["message"] else self._kind(entered)
        return Look(kind, oldest["peer"], oldest["since_ns"]) if oldest is not None else Look(kind, -1, 0)

    def _kernel(self) -> Look | None:
        """Return the wait that its kernel was in when the rank last asked the GPU, some milliseconds ago."""
        gpu = Gpu(**self._gpu_type.read(self._memory, self._at + self._gpu))
        waits = gpu.waits
        if not waits:
            return None
        if self._stopped():  # what it waits for may have come
            return Look(UNKNOWN, -1, 0)
        return Look(kind_in_words(gpu.what), waits[0].peer, waits[0].since_ns)

    def _stopped(self) -> bool:
        try:
            text = Path(f"/proc/{self.place[0]}/stat").read_bytes()
        except OSError:
            return True
        return text[text.rindex(b")") + 2 :][:1] in b"Tt"

    def _thread(self, wait: int) -> int:
        return int(struct.unpack_from("=I", self._memory, wait)[0])

    def _kind(self, number: int) -> Kind:
        brief = self._call.read(self._memory, self._at + self._calls + number % self._room * self._call.size)
        if brief["number"] != number:
            return UNKNOWN
        said = brief["what"], brief["algorithm"]
        if said not in self._kinds:
            self._kinds[said] = kind_of(self._record.call(brief))
        return self._kinds[said]

    def copy(self) -> None:
        """Keep the last calls and their ends as they are, the calls twice."""
        calls, ends = (
            slice(self._at + place, self._at + place + self._room * kind.size)
            for place, kind in ((self._calls, self._call), (self._ends, self._end))
        )
        self.copies.append((self._memory[calls], self._memory[ends], self._memory[calls]))

    def calls(self) -> dict[int, Call]:
        """Return the calls of all copies."""
        found: dict[int, Call] = {}
        for first, ends, again in self.copies:
            for row in range(self._room):
                brief, at = slice(row * self._call.size, (row + 1) * self._call.size), row * self._end.size
                number, ended = (struct.unpack_from("=Q", *where)[0] for where in ((first, brief.start), (ends, at)))
                known = found.get(number)
                news = known is None or (not known.finished_ns and (number == ended or not self._on_shm))
                if news and first[brief] == again[brief]:
                    call = self._record.call(self._call.read(first, brief.start), self._end.read(ends, at))
                    found[call.number] = call
        found.pop(0, None)
        return found


def watch(records: Sequence[Record], seconds: float, rate: float = RATE) -> Watched:
    """Look at a job for so long."""
    for record in records:
        record.watch_for(seconds + WATCHED_S)
    before = job_of(records)
    eyes = list(_eyes(records))
    step_ns = int(1e9 / min(rate, MOST / seconds))
    looks = []
    now = start = time.monotonic_ns()
    copied = 0
    while now < start + seconds * 1e9:
        looks.append((now, _looks(eyes, now)))
        if now - copied > COPY_S * 1e9:
            for eye in eyes:
                eye.copy()
            copied = now
            if all(process(record.pid).gone for record in records):
                break
        time.sleep(max(step_ns - (time.monotonic_ns() - now), 0) / 1e9)
        now = time.monotonic_ns()
    for eye in eyes:
        eye.copy()
    return Watched(before, job_of(records), looks, {eye.place: eye.calls() for eye in eyes})


def _looks(eyes: Sequence[_Eye], now: int) -> dict[Place, Look]:
    """Look with all of them. torch's groups do not say for whom they wait: it is the rank that is behind most."""
    looks = {eye.place: eye.look() for eye in eyes}
    for eye in eyes:
        look = looks[eye.place]
        if eye.by_torch and look.kind is not None:
            theirs = [other for other in eyes if other.place[1] == eye.place[1]]
            last = min(theirs, key=lambda other: other.entered)
            if last.entered < eye.entered:
                eye.waits_since = eye.waits_since or now
                looks[eye.place] = Look(look.kind, last.rank, eye.waits_since)
                continue
        eye.waits_since = 0
    return looks


def _eyes(records: Sequence[Record]) -> Iterator[_Eye]:
    for record in records:
        memory = mmap.mmap(record.fd, 0, prot=mmap.PROT_READ)
        slots = {slot.opened_ns: slot for slot in record.slots() if not slot.closed}
        layout = record.layout("Slot")
        for at in record.slot_places():
            (opened_ns,) = struct.unpack_from("=Q", memory, at + layout.place("opened_ns"))
            if opened_ns in slots:
                yield _Eye(record, at, slots[opened_ns], memory)


def blamed(job: Job, looks: dict[Place, Look]) -> Iterator[tuple[Place, int]]:
    """Yield who waits at a moment, and the process that keeps it, also through others that wait themselves."""
    waits = {place: _peer(job, place, look) for place, look in looks.items() if look.peer >= 0}
    next_of = {pid: peer for (pid, _), peer in waits.items()}
    for place, peer in waits.items():
        seen, at = {place[0]}, peer
        while at in next_of and at not in seen:
            seen.add(at)
            at = next_of[at]
        yield place, peer if at in seen else at


def _peer(job: Job, place: Place, look: Look) -> int:
    slot = job.ranks[place[0]].slot(place[1])
    return slot.peers[look.peer].pid if slot is not None else 0


def cores_of(job: Job) -> int:
    """Return on how many cores its ranks may run."""
    cores: set[int] = set()
    for pid in job.ranks:
        with suppress(OSError):
            cores |= os.sched_getaffinity(pid)
    return len(cores)


def whereabouts(records: Sequence[Record], job: Job, pid: int) -> Counter[str]:
    """Look where a rank is at a few moments when others wait for it; to answer interrupts it for a moment."""
    eyes, found = list(_eyes(records)), Counter[str]()
    deadline = time.monotonic() + PLACES_S
    while found.total() < PLACES and time.monotonic() < deadline:
        time.sleep(1 / RATE)
        seen = _looks(eyes, time.monotonic_ns())
        if any(kept == pid for _, kept in blamed(job, seen)):
            found[_where(records, pid)] += 1
            time.sleep(PLACES_S / PLACES / 4)
    return found


def _where(records: Sequence[Record], pid: int) -> str:
    job = job_of([record for record in records if record.pid == pid])
    job.ask_stacks([pid])
    rank = job.ranks[pid]
    if rank.process.halted:
        return rank.process.halted
    calls = (call for slot in rank.slots for call in slot.calls.values())
    last = max(calls, key=lambda call: call.entered_ns, default=None)
    stack = rank.stack(last.thread) if last is not None else None
    return f"in {stack}" if stack is not None and stack.place is not None else ""
