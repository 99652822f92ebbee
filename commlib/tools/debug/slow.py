"""`commlib debug --slow`: how ranks share their time between the program, waiting and moving data, and who is late.

The ranks do nothing for it: their records are mapped here, and read hundreds of times a second.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from commlib.counts import counted, ranks_text
from commlib.debug.format import doing_text
from commlib.debug.jobs import Job, job_of, process, state_of
from commlib.debug.record import OPEN, Gpu, Record, fields_of, is_wait
from commlib.tools.debug.page import clipped, table

RATE = 500  # looks a second
MAX_LOOKS = 20_000  # a long watch looks less often
PLACES, PLACES_S = 5, 1.0
WATCHED_S = 2.0  # so much longer ranks ask their GPUs often, as it takes a while to say where a late one is
LATE_SHARE = 0.05  # of the time that others wait for it: less is none to speak of
_TIMES, _TIMES_WAITS = 2.5, 1.5  # a late rank keeps others so much longer than any other does, and than it waits itself
_PARTS, _PARTS_LATE, _PARTS_SHARE = 10, 3, 0.6  # and does so in so large a share of the parts in which others wait

Place = tuple[int, int]  # a process and a communicator
Look = int  # the peer that it waits for, or one of these
PROGRAM, MOVES = -2, -1
Looks = dict[Place, Look]  # of all ranks, at one moment


class _Sampler:
    """Looks at one communicator of one rank, whose slot is mapped."""

    def __init__(self, record: Record, slot: Any) -> None:
        self._slot, self.place, self.rank, self.entered = slot, (record.pid, slot.id), slot.rank, 0
        backend = slot.backend.decode()
        self._on_gpu, self.by_torch = backend == "nccl", backend.startswith("torch")

    def look(self) -> Look:
        if self._on_gpu and (gpu := Gpu(**fields_of(self._slot.gpu[0]))).waits:
            peer = gpu.waits_for  # that its kernel waited for when the rank last asked the GPU, some milliseconds ago
        else:
            self.entered, finished = self._slot.entered, self._slot.finished
            waits = [wait for wait in self._slot.waits if is_wait(wait)]
            if not waits:
                return MOVES if self.entered > finished else PROGRAM
            peer = min(waits, key=lambda wait: int(wait.since_ns)).peer
        return MOVES if state_of(self.place[0]) in "TtX" else int(peer)  # what a stopped one waits for may have come


def watch(records: Sequence[Record], seconds: float) -> tuple[Job, Slowness]:
    """Look at a job for so long; return it as it is then, and what the looks say."""
    for record in records:
        record.watch_for(seconds + WATCHED_S)
    before = job_of(records)
    samplers = _samplers(records)
    step_s = max(1 / RATE, seconds / MAX_LOOKS)
    looks: list[Looks] = []
    now = start = time.monotonic()
    while now < start + seconds and not all(process(record.pid).gone for record in records):
        looks.append(_look_at_all(samplers))
        time.sleep(max(now + step_s - time.monotonic(), 0))
        now = time.monotonic()
    job = job_of(records)
    return job, slowness(before, job, looks)


def _samplers(records: Sequence[Record]) -> list[_Sampler]:
    return [_Sampler(record, slot) for record in records for slot in record.mapped_slots() if slot.state == OPEN]


def _look_at_all(samplers: Sequence[_Sampler]) -> Looks:
    """Look with all of them. torch's groups do not say for whom they wait: it is the rank that is furthest behind."""
    looks = {sampler.place: sampler.look() for sampler in samplers}
    for sampler in samplers:
        if sampler.by_torch and looks[sampler.place] != PROGRAM:
            members = [other for other in samplers if other.place[1] == sampler.place[1]]
            last = min(members, key=lambda other: other.entered)
            if last.entered < sampler.entered:
                looks[sampler.place] = last.rank
    return looks


def blamed(job: Job, looks: Looks) -> Iterator[tuple[Place, int]]:
    """Yield who waits at a moment, and the process that keeps it, also through others that wait themselves."""
    waits = {place: _peer(job, place, look) for place, look in looks.items() if look >= 0}
    next_of = {pid: peer for (pid, _), peer in waits.items()}
    for place, peer in waits.items():
        seen, at = {place[0]}, peer
        while at in next_of and at not in seen:
            seen.add(at)
            at = next_of[at]
        yield place, peer if at in seen else at


def _peer(job: Job, place: Place, look: Look) -> int:
    slot = job.ranks[place[0]].slot(place[1])
    return slot.peers[look].pid if slot is not None else 0


# --- what the looks say


@dataclass
class RankTime:
    """Where the time of a rank goes, in shares of it."""

    rank: int
    pid: int
    program: float
    moves: float
    waits: float
    keeps: float  # the mean share in which each other rank waits for it
    calls: int


@dataclass
class Slowness:
    seconds: float
    looks: int
    ranks: list[RankTime]
    late: list[RankTime]


Blames = list[tuple[Place, int]]  # of one moment


def slowness(before: Job, job: Job, looks: Sequence[Looks]) -> Slowness:
    moments = [list(blamed(job, each)) for each in looks]
    pids, ranks = {pid for each in looks for pid, _ in each}, list[RankTime]()
    for pid in pids:
        states = Counter(_state(pid, each) for each in looks)
        waiting = sum(len({place[0] for place, by in blames if by == pid}) for blames in moments)
        was, now = before.ranks.get(pid), job.ranks[pid]
        olds = {slot.id: slot for slot in was.slots} if was else {}
        shares = {state: states[state] / len(looks) for state in ("program", "moves", "waits")}
        keeps = waiting / (len(looks) * max(len(pids) - 1, 1))
        calls = sum(slot.calls_since(olds.get(slot.id, slot)) for slot in now.slots)
        ranks.append(RankTime(now.number, pid, **shares, keeps=keeps, calls=calls))
    ranks.sort(key=lambda one: one.rank)
    return Slowness((job.at_ns - before.at_ns) / 1e9, len(looks), ranks, list(_late(ranks, moments)))


def _state(pid: int, looks: Looks) -> str:
    look = max(look for place, look in looks.items() if place[0] == pid)
    return "waits" if look >= 0 else "moves" if look == MOVES else "program"


def _late(ranks: list[RankTime], moments: list[Blames]) -> Iterator[RankTime]:
    """Ranks for which others wait: clearly more than for the rest, more than they wait themselves, and again and again.

    Where ranks take turns on too few cores, each waits for each: that makes none of them late.
    """
    size = max(len(moments) // _PARTS, 1)
    cut = [moments[at : at + size] for at in range(0, len(moments), size)]
    parts = [Counter(by for blames in part for _, by in blames) for part in cut]
    busy = [part for part in parts if part.total() >= LATE_SHARE * size]
    for one in ranks:
        others = [other.keeps for other in ranks if other is not one]
        clear = one.keeps >= max(LATE_SHARE, _TIMES * max(others, default=0.0), _TIMES_WAITS * one.waits)
        first = sum(part.most_common(1)[0][0] == one.pid for part in busy)
        if clear and first >= max(_PARTS_LATE, _PARTS_SHARE * len(busy)):
            yield one


def _whereabouts(records: Sequence[Record], job: Job, pid: int) -> Counter[str]:
    """Look where a rank is at a few moments when others wait for it; to answer interrupts it for a moment."""
    samplers, places = _samplers(records), Counter[str]()
    deadline = time.monotonic() + PLACES_S
    while places.total() < PLACES and time.monotonic() < deadline:
        time.sleep(1 / RATE)
        if any(blame == pid for _, blame in blamed(job, _look_at_all(samplers))):
            places[_where([record for record in records if record.pid == pid])] += 1
            time.sleep(PLACES_S / PLACES / 4)
    return places


def _where(records: Sequence[Record]) -> str:
    job = job_of(records)
    rank = job.ranks[records[0].pid]
    job.ask_stacks([rank.pid])
    calls = (call for slot in rank.slots for call in slot.calls.values())
    last = max(calls, key=lambda call: call.entered_ns, default=None)
    return doing_text(rank, None, last.thread if last is not None else 0)


# --- the page


def slow_page(job: Job, slow: Slowness, lines: Sequence[str]) -> str:
    """Return the text: the sentences, then where each rank's time goes."""
    head = clipped(f"job {job.number}: {counted(len(slow.ranks), 'rank')} here, {job.command}")
    ended = ", until the job ended" * all(rank.process.gone for rank in job.ranks.values())
    rows: list[tuple[str, ...]] = [("rank", "program", "moves", "waits", "awaited")]
    for one in slow.ranks:
        rows.append((str(one.rank), *(f"{share:.0%}" for share in (one.program, one.moves, one.waits, one.keeps))))
    looks = f"{counted(slow.looks, 'look')} in {slow.seconds:.1f} s{ended}"
    return "\n".join([head, looks, "", *lines, "", *table(rows)])


def slow_document(job: Job, slow: Slowness, lines: Sequence[str]) -> dict[str, Any]:
    return {"job": job.number, "command": job.command, "sentences": list(lines), **asdict(slow)}


def sentences(records: Sequence[Record], job: Job, slow: Slowness) -> list[str]:
    """Say who is late, and where it is meanwhile; then how ranks share their time."""
    if not slow.ranks:
        return ["no rank has a communicator open"]
    lines = [_late_text(one, slow.seconds, _whereabouts(records, job, one.pid)) for one in slow.late]
    program, moves, waits = (
        f"{fmean(getattr(one, state) for one in slow.ranks):.0%}" for state in ("program", "moves", "waits")
    )
    text = f"ranks wait for others {waits} of their time, move data {moves}, and are in the program {program}"
    lines.append(text if lines else f"no rank is late: {text}")
    if far := [rank.number for rank in job.ranks.values() if rank.elsewhere]:
        lines.append(f"{ranks_text(far)} {'is' if len(far) == 1 else 'are'} on other hosts: run this there, too")
    return lines


def _late_text(one: RankTime, seconds: float, where: Counter[str]) -> str:
    text = f"rank {one.rank} is late: the others wait for it {one.keeps:.0%} of the time, "
    if one.calls:
        text += f"{one.keeps * seconds / one.calls * 1e3:.3g} ms for each of {counted(one.calls, 'call')}"
    else:
        text += "and no call has ended: see `commlib debug`"
    for place, count in where.most_common(1):
        text += f"; then {place} ({count} of {counted(where.total(), 'look')})"
    return text
