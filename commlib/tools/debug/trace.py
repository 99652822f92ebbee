"""Traces as Perfetto and chrome://tracing read them: the calls of ranks over time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from commlib.debug.jobs import Job
from commlib.debug.record import Call, Slot

Event = dict[str, Any]
Calls = Mapping[tuple[int, int], Mapping[int, Call]]
"""By process and communicator, and by number."""


def recorded_calls(job: Job) -> Calls:
    return {(rank.pid, slot.id): slot.calls for rank in job.ranks.values() for slot in rank.slots}


def named(what: str, rank: int, at: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": rank, "tid": at, "args": {"name": name}}


def trace_text(events: Sequence[Event]) -> str:
    """Return the file: times are microseconds since the first event."""
    first = min((event["ts"] for event in events if "ts" in event), default=0.0)
    moved = [{**event, "ts": round(event["ts"] - first, 3)} if "ts" in event else event for event in events]
    lines = ",\n".join(json.dumps(event) for event in moved)
    return f'{{"displayTimeUnit": "ns", "traceEvents": [\n{lines}\n]}}\n'


def events_of(job: Job, calls: Calls) -> list[Event]:
    """Return the events of a job: a rank is a process, each of its communicators a thread, and what it waits for now.

    A call whose end is not timed, being small, is a mark where it was entered.
    """
    order = list(job.communicators)
    events: list[Event] = []
    for (pid, communicator), made in calls.items():
        rank, slot = job.ranks[pid].number, job.ranks[pid].slot(communicator)
        if slot is None or communicator not in order:
            continue
        thread = order.index(communicator) + 1
        events.append(named("process_name", rank, 0, f"rank {rank} (process {pid})"))
        events.append(named("thread_name", rank, thread, f"communicator {thread}"))
        events += [_call(rank, thread, made[number], job, slot.under_way) for number in sorted(made)]
        events += list(_waits(job, slot, rank, thread))
    return events


def _call(rank: int, thread: int, call: Call, job: Job, under_way: Call | None) -> Event:
    end = call.finished_ns or (job.at_ns if call == under_way else 0)
    times = {"ph": "X", "dur": (end - call.entered_ns) * 1e-3} if end else {"ph": "i", "s": "t"}
    args = {"call": call.number, "what": call.details, "algorithm": call.algorithm, "site": call.site}
    base = {"name": call.op, "cat": "call", "pid": rank, "tid": thread, "ts": call.entered_ns * 1e-3}
    return {**base, **times, "args": args}


def _waits(job: Job, slot: Slot, rank: int, thread: int) -> Iterator[Event]:
    for wait in slot.waits:
        yield {
            "name": f"waits for rank {job.name(slot, wait.peer)}",
            "cat": "wait",
            "ph": "X",
            "pid": rank,
            "tid": thread,
            "ts": wait.since_ns * 1e-3,
            "dur": max(job.at_ns - wait.since_ns, 0) * 1e-3,
        }
