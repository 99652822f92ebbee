"""Samples: what the ranks of a job are in, looked at hundreds of times a second, straight in their memory.

The ranks do nothing for it: their records are mapped here, and read.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from commlib.debug.jobs import Job, job_of, process, state_of
from commlib.debug.record import OPEN, Call, Gpu, Record, fields_of, is_wait

RATE = 500  # looks a second
MAX_LOOKS = 20_000  # a long watch looks less often
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
    """A job before and after, and the moments between; one entry of `looks` is one moment of all ranks."""

    before: Job
    job: Job
    looks: list[tuple[int, dict[Place, Look]]]
    calls: dict[Place, dict[int, Call]]

    @property
    def seconds(self) -> float:
        return (self.job.at_ns - self.before.at_ns) / 1e9


def kind_of(call: Call) -> Kind:
    return call.op, call.dtype, call.count, call.algorithm


def parsed_kind(text: str) -> Kind:
    """Read 'all_reduce float32 max by lsa_ll_oneshot of 4096 bytes'."""
    called, _, rest = text.partition(" by ")
    algorithm, _, num_bytes = rest.partition(" of ")
    op, dtype = [*called.split(), ""][:2]
    bits = re.search(r"\d+", dtype)
    size = int(bits[0]) // 8 if bits else 1
    return op, dtype, int(num_bytes.split()[0]) // size if num_bytes else 0, algorithm


class _Sampler:
    """Looks at one communicator of one rank, whose slot is mapped."""

    def __init__(self, record: Record, slot: Any) -> None:
        self._record, self._slot = record, slot
        self.place = record.pid, slot.id
        backend = slot.backend.decode()
        self._on_gpu, self._on_shm = backend == "nccl", backend == "shm"
        self.by_torch = backend.startswith("torch")
        self._calls = slot.calls if self._on_shm else slot.entries
        self._kinds: dict[tuple[int, int], Kind] = {}
        self._copies: list[tuple[Any, Any, Any]] = []
        self.rank, self.entered, self.waits_since_ns = slot.rank, 0, 0

    def look(self) -> Look:
        if self._on_gpu and (wait := self._kernels_wait()) is not None:
            return wait
        self.entered, finished = self._slot.entered, self._slot.finished
        entered = self.entered
        waits = [wait for wait in self._slot.waits if is_wait(wait)]
        oldest = min(waits, key=lambda wait: int(wait.since_ns), default=None)
        if oldest is None:
            return IDLE if entered <= finished else Look(self._kind(entered), -1, 0)
        if self._is_stopped():  # what it waits for may have come
            return Look(UNKNOWN, -1, 0)
        return Look(MESSAGE if oldest.message else self._kind(entered), oldest.peer, oldest.since_ns)

    def _kernels_wait(self) -> Look | None:
        """Return the wait that its kernel was in when the rank last asked the GPU, some milliseconds ago."""
        gpu = Gpu(**fields_of(self._slot.gpu[0]))
        if not gpu.waits:
            return None
        if self._is_stopped():
            return Look(UNKNOWN, -1, 0)
        return Look(parsed_kind(gpu.what), gpu.waits[0].peer, gpu.waits[0].since_ns)

    def _is_stopped(self) -> bool:
        return state_of(self.place[0]) in "TtX"

    def _kind(self, number: int) -> Kind:
        call = self._calls[number % len(self._calls)]
        key = call.what, call.algorithm
        if call.number != number:
            return UNKNOWN
        if key not in self._kinds:
            self._kinds[key] = kind_of(self._record.call(call))
        return self._kinds[key]

    def copy(self) -> None:
        """Copy the last calls and their ends, the calls twice, as they may change meanwhile."""
        calls, ends = type(self._calls).from_buffer_copy, type(self._slot.ends).from_buffer_copy
        self._copies.append((calls(self._calls), ends(self._slot.ends), calls(self._calls)))

    def calls(self) -> dict[int, Call]:
        known = dict[int, Call]()
        for first, ends, again in self._copies:
            for call, end, other in zip(first, ends, again, strict=True):
                before = known.get(call.number)
                ended = call.number == end.number or not self._on_shm
                is_news = before is None or (ended and not before.finished_ns)
                if call.number and is_news and bytes(call) == bytes(other):
                    known[call.number] = self._record.call(call, end if self._on_shm else None)
        return known


def watch(records: Sequence[Record], seconds: float, rate: float = RATE) -> Watched:
    for record in records:
        record.watch_for(seconds + WATCHED_S)
    before = job_of(records)
    samplers = _samplers(records)
    step_ns = int(1e9 / min(rate, MAX_LOOKS / seconds))
    looks = []
    now = start = time.monotonic_ns()
    copied = 0
    while now < start + seconds * 1e9:
        looks.append((now, _look_at_all(samplers, now)))
        if now - copied > COPY_S * 1e9:
            for sampler in samplers:
                sampler.copy()
            copied = now
            if all(process(record.pid).gone for record in records):
                break
        time.sleep(max(step_ns - (time.monotonic_ns() - now), 0) / 1e9)
        now = time.monotonic_ns()
    for sampler in samplers:
        sampler.copy()
    return Watched(before, job_of(records), looks, {sampler.place: sampler.calls() for sampler in samplers})


def _samplers(records: Sequence[Record]) -> list[_Sampler]:
    return [_Sampler(record, slot) for record in records for slot in record.mapped_slots() if slot.state == OPEN]


def _look_at_all(samplers: Sequence[_Sampler], now: int) -> dict[Place, Look]:
    """Look with all of them. torch's groups do not say for whom they wait: it is the rank that is furthest behind."""
    looks = {sampler.place: sampler.look() for sampler in samplers}
    for sampler in samplers:
        look, since_ns = looks[sampler.place], 0
        if sampler.by_torch and look.kind is not None:
            members = [other for other in samplers if other.place[1] == sampler.place[1]]
            last = min(members, key=lambda other: other.entered)
            if last.entered < sampler.entered:
                since_ns = sampler.waits_since_ns or now
                looks[sampler.place] = Look(look.kind, last.rank, since_ns)
        sampler.waits_since_ns = since_ns
    return looks


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
    cores: set[int] = set()
    for pid in job.ranks:
        with suppress(OSError):
            cores |= os.sched_getaffinity(pid)
    return len(cores)


def whereabouts(records: Sequence[Record], job: Job, pid: int) -> Counter[str]:
    """Look where a rank is at a few moments when others wait for it; to answer interrupts it for a moment."""
    samplers, places = _samplers(records), Counter[str]()
    deadline = time.monotonic() + PLACES_S
    while places.total() < PLACES and time.monotonic() < deadline:
        time.sleep(1 / RATE)
        looks = _look_at_all(samplers, time.monotonic_ns())
        if any(blame == pid for _, blame in blamed(job, looks)):
            places[_where([record for record in records if record.pid == pid])] += 1
            time.sleep(PLACES_S / PLACES / 4)
    return places


def _where(records: Sequence[Record]) -> str:
    job = job_of(records)
    rank = job.ranks[records[0].pid]
    job.ask_stacks([rank.pid])
    if rank.process.halted:
        return rank.process.halted
    calls = (call for slot in rank.slots for call in slot.calls.values())
    last = max(calls, key=lambda call: call.entered_ns, default=None)
    stack = rank.stack(last.thread) if last is not None else None
    return f"in {stack}" if stack is not None and stack.place is not None else ""
