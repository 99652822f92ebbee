"""Findings: what keeps a job from going on, and which rank's doing it is, from the records of its ranks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from commlib.counts import ranks_text
from commlib.debug.differences import first_difference
from commlib.debug.format import doing_text, last_text, left_text, seconds_text, waited_text, where_text
from commlib.debug.jobs import Job, Rank, look
from commlib.debug.record import GPU, Slot, Wait

STUCK_S = 1.0  # a wait that takes no longer is none to speak of
_LATE_SHARE, _LATE_S, _WAITING_SHARE = 0.5, 0.03, 0.3


@dataclass
class Finding:
    """Something that is wrong, the ranks to look at, and the call that it is about."""

    kind: str  # missing, differs, gone, order, stopped, late, ended, launcher, silent
    ranks: tuple[int, ...]
    text: str
    calls: tuple[tuple[int, int], ...] = ()  # the communicator, and the number of the call or message
    threads: dict[int, int] = field(default_factory=dict)  # by process: whose stacks say more
    serious: bool = True


@dataclass(frozen=True)
class _Stuck:
    """A thread that waits, and the thread that it waits for."""

    rank: Rank
    slot: Slot
    wait: Wait
    peer: Rank
    next: tuple[int, int] | None  # the process and thread that should come

    @property
    def node(self) -> tuple[int, int]:
        return self.rank.pid, self.wait.thread

    @property
    def place(self) -> tuple[int, int, int]:
        return self.slot.id, self.wait.number, self.wait.message


def findings_of(job: Job, before: Job | None = None, stuck_s: float = STUCK_S) -> list[Finding]:
    """Return them, the main one first; `before` is the job a moment ago, without which waits count by length."""
    stuck: dict[tuple[int, int], _Stuck] = {}
    for one in _stuck(job, before, stuck_s):  # a thread that waits inside of a call, waits in that call
        stuck.setdefault(one.node, one)
    findings = [*_differs(job, stuck), *_gone(job, stuck), *_missing(job, stuck), *_order(job, stuck)]
    findings += _halted(job, findings)
    findings += [*_ended(job, findings), *([] if findings or before is None else _late(job, before))]
    return [*findings, *_orphans(job), *_elsewhere(job, stuck_s)]


def findings_lines(job: Job, before: Job | None, findings: list[Finding]) -> list[str]:
    """Return the findings, each with what the ranks to look at are doing."""
    lines = []
    for finding in findings:
        lines.append(finding.text)
        for pid, thread in finding.threads.items():
            rank, old = job.ranks[pid], before.ranks.get(pid) if before else None
            lines.append(f"  rank {rank.number}: {doing_text(rank, old.process if old else None, thread)}")
    return lines


def _stuck(job: Job, before: Job | None, stuck_s: float) -> Iterator[_Stuck]:
    for rank in job.ranks.values():
        old = before.ranks.get(rank.pid) if before else None
        for slot in () if rank.process.halted else rank.slots:  # what a stopped one waited for may have come
            was = old.slot(slot.id) if old else None
            for wait in slot.waits:
                stands = before is None or (was is not None and wait in was.waits)
                if stands and job.seconds_since(wait.since_ns) >= stuck_s and not slot.closed:
                    peer = job.ranks[slot.peers[wait.peer].pid]
                    yield _Stuck(rank, slot, wait, peer, _awaited(peer, slot, wait))


def _awaited(peer: Rank, slot: Slot, wait: Wait) -> tuple[int, int] | None:
    """Return the thread of the peer that makes the calls of this communicator: that of its last one."""
    peer_slot = peer.slot(slot.id)
    if peer_slot is None:
        return None
    if wait.thread == GPU:
        return peer.pid, GPU
    entries = peer_slot.messages.values() if wait.message else peer_slot.calls.values()
    calls = list(entries) or [*peer_slot.calls.values(), *peer_slot.messages.values()]
    if calls:
        return peer.pid, max(calls, key=lambda call: (call.entered_ns, call.number)).thread
    return peer.pid, next((other.thread for mine in peer.slots for other in mine.waits), 0)


def _missing(job: Job, stuck: dict[tuple[int, int], _Stuck]) -> Iterator[Finding]:
    """Ranks that others wait for and that wait for nobody, each with the earliest call that it owes."""
    owed: dict[int, list[_Stuck]] = {}
    for one in stuck.values():
        if one.next not in stuck and not one.peer.process.gone:
            owed.setdefault(one.peer.pid, []).append(one)
    for pid, waits in owed.items():
        oldest = min(waits, key=lambda one: (one.wait.since_ns, one.wait.number))
        first = min((one for one in waits if one.slot.id == oldest.slot.id), key=lambda one: one.wait.number)
        yield _missing_one(job, job.ranks[pid], first, _behind(stuck, pid))


def _behind(stuck: dict[tuple[int, int], _Stuck], pid: int) -> list[_Stuck]:
    """Return who waits for a process, also through others."""
    behind: list[_Stuck] = []
    for one in stuck.values():
        seen, at = set(), one
        while at.node not in seen:
            seen.add(at.node)
            if at.peer.pid == pid and at.next not in stuck:
                behind.append(one)
                break
            at = stuck.get(at.next, at) if at.next else at
    return behind


def _missing_one(job: Job, rank: Rank, first: _Stuck, waits: list[_Stuck]) -> Finding:
    slot, wait = rank.slot(first.slot.id), first.wait
    call, number = waited_text(job, first.slot, wait), job.name(first.slot, wait.peer)
    tail = _waiting_text(job, waits)
    if slot is not None and slot.closed:
        text = f"rank {number} has closed its communicator: {tail} in {call}"
    elif wait.message:
        text = f"rank {number} has not made the other end of {call}: {tail}"
    elif slot is not None and (slot.gpu.over if wait.thread == GPU else slot.entered) >= wait.number:
        text = f"rank {number} is in {call} too, but does not go on: {tail}"
    else:
        made = "the GPU of rank {} has not come to {}: {}" if wait.thread == GPU else "rank {} has not made {}: {}"
        text = made.format(number, call, tail)
        graph = first.slot.gpu.graph if wait.thread == GPU else 0
        text += f"; {last_text(job, slot, graph)}" if slot is not None else ""
    threads = {rank.pid: first.next[1] if first.next else 0}
    return Finding("missing", (number,), text, ((first.slot.id, wait.number),), threads)


def _waiting_text(job: Job, waits: list[_Stuck]) -> str:
    waiters = {one.rank.number for one in waits}
    longest = max(job.seconds_since(one.wait.since_ns) for one in waits)
    return f"{ranks_text(waiters)} wait{'s' * (len(waiters) == 1)} for it, for {seconds_text(longest)}"


def _order(job: Job, stuck: dict[tuple[int, int], _Stuck]) -> Iterator[Finding]:
    """Ranks that wait for each other in a ring: they use communicators, or messages, in different orders."""
    seen: set[tuple[int, int]] = set()
    for start in stuck:
        path: list[tuple[int, int]] = []
        at: tuple[int, int] | None = start
        while at is not None and at in stuck and at not in path:
            path.append(at)
            at = stuck[at].next
        if at is None or at not in path or at in seen:
            continue
        ring = path[path.index(at) :]
        seen.update(ring)
        # Also those that wait for the ring: the majority is in one call, and who is in another is the odd one. A rank
        # that is not in all of these communicators had no choice.
        waiting = [stuck[node] for node in stuck if node in ring or stuck[node].next in ring]
        involved = {stuck[node].slot.id for node in ring}
        free = [one for one in waiting if involved <= {slot.id for slot in one.rank.slots}]
        common, count = Counter(one.place for one in free or waiting).most_common(1)[0]
        odd = [one for one in free if one.place != common]
        clear = odd and count > len(free) - count
        each = [f"rank {one.rank.number} is in {waited_text(job, one.slot, one.wait)}" for one in waiting]
        text = f"ranks wait for each other: {'; '.join(each)}. They make calls in different orders"
        ranks = tuple(sorted({one.rank.number for one in (odd if clear else waiting)}))
        text += f", and {ranks_text(ranks)} in another one than the rest" if clear else ""
        calls = [common[:2]] if clear else list(dict.fromkeys(one.place[:2] for one in waiting))
        threads = {one.rank.pid: one.wait.thread for one in waiting}
        yield Finding("order", ranks, text, tuple(calls), threads)


def _halted(job: Job, findings: list[Finding]) -> Iterator[Finding]:
    """Ranks that cannot run, though nobody waits for them yet."""
    named = {number for finding in findings for number in finding.ranks}
    for rank in job.ranks.values():
        if rank.process.state in ("T", "t") and rank.number not in named:
            text = f"rank {rank.number} (process {rank.pid}) is {rank.process.halted}"
            yield Finding("stopped", (rank.number,), text)


def _differs(job: Job, stuck: dict[tuple[int, int], _Stuck]) -> Iterator[Finding]:
    for slots in job.communicators.values():
        difference = first_difference(job, slots)
        if difference is None:
            continue
        # Where none is in the majority: one that a rank beyond waits for in another call has left that out.
        ranks, at, text = difference
        beyond = [one for one in stuck.values() if one.rank.number not in ranks]
        owes = {one.peer.number: one for one in beyond if one.peer.number in ranks}
        if len(ranks) > 1 and len(owes) == 1:
            ((number, one),) = owes.items()
            ranks, text = (number,), f"{text}; rank {one.rank.number} waits for rank {number} in"
            text = f"{text} {waited_text(job, one.slot, one.wait)}"
        yield Finding("differs", ranks, text, ((slots[0].id, at),))


def _gone(job: Job, stuck: dict[tuple[int, int], _Stuck]) -> Iterator[Finding]:
    """Ranks whose process has ended while others have a communicator with them open."""
    for pid, rank in job.ranks.items():
        open_slots = [slot for other in job.ranks.values() for slot in other.slots if not slot.closed]
        places = [(slot, at) for slot in open_slots for at, peer in enumerate(slot.peers) if peer.pid == pid]
        if not rank.process.gone or not places:
            continue
        slot, at = max(places, key=lambda place: (len(place[0].waits) > 0, place[0].peers[place[1]].number))
        # Ranks look at others while they wait: what one has seen before is old.
        name, seen = job.name(slot, at), slot.calls.get(slot.peers[at].number) if slot.waits else None
        text = f"rank {name} (process {rank.pid}) has ended"
        text += f"; it was last seen in {seen}{where_text(job, slot)}" if seen else ""
        if waits := [one for one in stuck.values() if one.peer is rank]:
            text += f"; {_waiting_text(job, waits)}, in {waited_text(job, waits[0].slot, waits[0].wait)}"
        yield Finding("gone", (name,), text, tuple({(slot.id, slot.entered) for slot, _ in places}))


def _ended(job: Job, findings: list[Finding]) -> Iterator[Finding]:
    """Communicators that ended with an error; the slot of the rank that failed first says why."""
    for slots in job.communicators.values():
        slot = next((slot for slot in slots if slot.ended and not slot.closed), None)
        if slot is not None:
            numbers = tuple(job.name(slot, peer) for peer in range(slot.world))
            serious = not any(number == slot.id for one in findings for number, _ in one.calls)
            which = where_text(job, slot).removeprefix(" of") or " the communicator"
            text = f"{slot.ended_kind} has ended{which}: {slot.ended.splitlines()[0]}"
            left = [one for one in slots if one.gpu.left_in]
            text += "".join(f"; the GPU of rank {job.name(one, one.rank)} {left_text(one)}" for one in left)
            yield Finding("ended", numbers, text, ((slot.id, slot.entered),), serious=serious)


def _late(job: Job, before: Job) -> Iterator[Finding]:
    """Ranks that others wait for much of the time, long each time, and that do not wait for such a rank themselves."""
    span_s = (job.at_ns - before.at_ns) / 1e9
    long: dict[tuple[int, int], tuple[Slot, float]] = {}  # by who waits and for whom, as processes
    waiting: Counter[tuple[int, int]] = Counter()  # in ns, by communicator and process
    for slot in chain(*job.communicators.values()):
        pid = slot.peers[slot.rank].pid
        was = (before.ranks.get(pid) or job.ranks[pid]).slot(slot.id) or slot
        for number, peer in enumerate(slot.peers):
            seconds, times = _waited_s(job, before, slot, was, number)
            waiting[slot.id, pid] += int(1e9 * seconds)
            if seconds / times >= _LATE_S and seconds >= _LATE_SHARE * span_s:
                long[pid, peer.pid] = slot, seconds
    late = {peer for _, peer in long}
    first = {peer for peer in late if not any((peer, other) in long for other in late)}
    for (_, pid), (slot, seconds) in long.items():
        if pid in first and waiting[slot.id, pid] <= 1e9 * _WAITING_SHARE * span_s:
            first.remove(pid)
            name, share = job.ranks[pid].number, min(seconds / span_s, 1)
            text = f"rank {name} is late: others wait for it {share:.0%} of the time{where_text(job, slot)}"
            yield Finding("late", (name,), text, ((slot.id, slot.entered),), {pid: 0})


def _waited_s(job: Job, before: Job, slot: Slot, was: Slot, number: int) -> tuple[float, int]:
    """Return how long, and how often, a rank waited for a peer between two moments."""
    now, then = slot.peers[number], was.peers[number]
    under_way = sum(job.at_ns - max(wait.since_ns, before.at_ns) for wait in slot.waits if wait.peer == number)
    carried = sum(before.at_ns - wait.since_ns for wait in was.waits if wait.peer == number and wait not in slot.waits)
    return max(now.waited_ns - then.waited_ns + under_way - carried, 0) / 1e9, now.waits - then.waits + 1


def _orphans(job: Job) -> Iterator[Finding]:
    running = [rank for rank in job.ranks.values() if not rank.process.gone]
    if orphans := [rank for rank in running if rank.started_by not in (0, 1, rank.process.parent)]:
        parents = ", ".join(sorted({str(rank.started_by) for rank in orphans}))
        numbers = tuple(sorted(rank.number for rank in orphans))
        text = f"what started {ranks_text(numbers)} (process {parents}) has ended, so nothing will end them"
        yield Finding("launcher", numbers, text, serious=False)


def _elsewhere(job: Job, stuck_s: float) -> Iterator[Finding]:
    """Ranks on other hosts, which cannot be seen from here: they may keep the others."""
    calls = [slot.under_way for rank in job.ranks.values() for slot in rank.slots if not slot.closed]
    stands = any(call is not None and job.seconds_since(call.entered_ns) >= stuck_s for call in calls)
    if numbers := tuple(sorted(rank.number for rank in job.ranks.values() if rank.elsewhere)):
        text = f"what {ranks_text(numbers)} do is not known here; run commlib debug on their hosts"
        yield Finding("silent", numbers, text, serious=stands)


# --- what a rank adds to its errors -----------------------------------------------------------------------------------

_EXPLAINED = ("CommTimeout", "PeerLost")
_LINES, _BYTES = 8, 2500


def explain(communicator: str, kind: str) -> str:
    """Return what the ranks of a communicator are in, for the error that ends it; nothing where that fails."""
    if kind not in _EXPLAINED:
        return ""
    try:
        slot = look([os.getpid()]).ranks[os.getpid()].slot(int(communicator))
    except Exception:  # the error itself matters more
        return ""
    lines = explained([peer.pid for peer in slot.peers], min(1.0, slot.timeout_s / 2)) if slot else []
    return "\n".join(lines).encode()[:_BYTES].decode(errors="ignore")


def explained(pids: Iterable[int], stuck_s: float = 0.0) -> list[str]:
    """Say in a few lines what keeps these processes, of which one may be gone; nothing where that fails."""
    try:
        job = look(dict.fromkeys(pids))
        findings = [one for one in findings_of(job, stuck_s=stuck_s) if one.kind not in ("ended", "launcher")]
        job.ask_stacks({pid for finding in findings for pid in finding.threads})
        return findings_lines(job, None, findings)[:_LINES]
    except Exception:
        return []
