"""What `commlib debug` prints of a job: in plain words what is wrong, then a line for each rank; or a document."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain
from typing import Any

from commlib.counts import counted
from commlib.debug.findings import Finding
from commlib.debug.jobs import Job, Rank
from commlib.debug.kept import Slot
from commlib.debug.words import doing_text, members_text, ranks_text, seconds_text, waited_in

_IN, _INDENT = 6, "      "  # the column of what a rank is in, and what stands before it below
_STATES = {
    "R": "runs",
    "S": "sleeps",
    "T": "stopped",
    "t": "debugged",
    "Z": "dead",
    "X": "gone",
    "D": "in a disk",
    "?": "unknown",
}


def findings_lines(job: Job, before: Job | None, findings: list[Finding]) -> list[str]:
    """Return the findings, each with what the ranks to look at are doing."""
    lines = []
    for finding in findings:
        lines.append(finding.text)
        for pid, thread in finding.threads.items():
            rank, old = job.ranks[pid], before.ranks.get(pid) if before else None
            lines.append(f"  rank {rank.number}: {doing_text(rank, old.process if old else None, thread)}")
    return lines


def ranks_lines(job: Job) -> list[str]:
    """Return a line for each rank: what it was in."""
    lines = []
    for rank in sorted(job.ranks.values(), key=lambda rank: rank.number):
        calls = [call for *_, call, since, _ in _rows(job, rank) if since]
        thread = next((wait.thread for slot in rank.slots for wait in slot.waits), 0)
        place = f", at {stack}" if (stack := rank.stack(thread)) is not None and stack.frames else ""
        lines.append(f"rank {rank.number} was in {'; '.join(calls) or 'no call'}{place}")
    return lines


def page(job: Job, before: Job, findings: list[Finding]) -> str:
    """Return the text."""
    lines = [clipped(f"{_name(job)}, {job.command}"), "", *_unrecorded_lines(job)]
    if not any(finding.serious for finding in findings):
        lines.append(_progress_text(job, before))
    lines += [*wrapped(findings_lines(job, before, findings)), ""]
    rows: list[tuple[str, ...]] = [("rank", "process", "state", "core", "comm", "calls", "in", "for", "at")]
    for rank in sorted(job.ranks.values(), key=lambda rank: rank.number):
        rows += _rows(job, rank)
    lines += _table(rows, shutil.get_terminal_size().columns)
    made = enumerate(job.communicators.values(), 1)
    several = ["", *(f"communicator {number}: {members_text(job, slots[0])}" for number, slots in made)]
    return "\n".join([*lines, *several * (len(several) > 2)])


def brief(job: Job, before: Job) -> str:
    """Return one line for a job in which nothing is wrong."""
    return clipped(f"{_name(job)}: {_progress_text(job, before)}, {job.command}")


def _name(job: Job) -> str:
    living = sum(bool(rank.slots) for rank in job.ranks.values())
    return f"job {job.number}: {living} of {counted(len(job.ranks), 'rank')} {_hosts_text(job)}"


def wrapped(lines: Iterable[str]) -> list[str]:
    """Break lines between words, at the terminal's width."""
    columns = max(shutil.get_terminal_size().columns, 40)
    found = (textwrap.wrap(line, columns, subsequent_indent="    ", break_on_hyphens=False) for line in lines)
    return [*chain(*found)]


def clipped(line: str) -> str:
    """Cut a line to the terminal's width: command lines can be long."""
    columns, line = max(shutil.get_terminal_size().columns, 40), line.removesuffix(", ")  # one that ended has none
    return line if len(line) <= columns else f"{line[: columns - 1]}…"


def _hosts_text(job: Job) -> str:
    """Say where the ranks are: 'here', or 'here and on node2'."""
    others = sorted({rank.card.host for rank in job.ranks.values() if rank.card is not None and rank.slots})
    return f"here and on {', '.join(others)}" if others else "here"


def _table(rows: list[tuple[str, ...]], columns: int) -> list[str]:
    """Return the lines of a table; where it is too wide for the terminal, what a rank is in stands below its row."""
    lines = _aligned(rows)
    if max(map(len, lines)) <= columns:
        return lines
    lines = _aligned([row[:_IN] + row[_IN + 1 : -1] for row in rows])
    words = [f"{row[_IN]}, at {row[-1]}" if row[-1] else row[_IN] for row in rows]
    below = (textwrap.wrap(said, max(columns, 40), initial_indent=_INDENT, subsequent_indent=_INDENT) for said in words)
    return [*lines[:1], *(line for row, more in list(zip(lines, below, strict=True))[1:] for line in (row, *more))]


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _progress_text(job: Job, before: Job) -> str:
    seconds = (job.at_ns - before.at_ns) / 1e9
    rates = [
        slot.calls_since(was) / seconds
        for rank in job.ranks.values()
        for slot in rank.slots
        if rank.pid in before.ranks and (was := before.ranks[rank.pid].slot(slot.id)) is not None
    ]
    if not job.communicators:
        return "the job ended meanwhile"
    if any(rates):
        return f"nothing is wrong: ranks make up to {counted(round(max(rates)), 'call')} in a second"
    return "no rank waits for another one, and none makes calls"


def _unrecorded_lines(job: Job) -> list[str]:
    ranks = [rank for rank in job.ranks.values() if rank.unrecorded]
    if not ranks:
        return []
    most = counted(max(rank.unrecorded for rank in ranks), "communicator")
    named = ranks_text(rank.number for rank in ranks)
    return [f"of up to {most} of {named} nothing is known: the record of a rank has no room for them"]


def _rows(job: Job, rank: Rank) -> list[tuple[str, ...]]:
    """Return a row for each communicator that the rank has open."""
    state = "unknown" if rank.silent else _STATES.get(rank.process.state, rank.process.state)
    head = (str(rank.number), rank.place, state, str(rank.process.core) if rank.process.core >= 0 else "")
    order = list(job.communicators)
    rows: list[tuple[str, ...]] = []
    for slot in [slot for slot in rank.slots if not slot.closed]:
        call, since = _call_of(job, slot)
        stack = rank.stack(next((wait.thread for wait in slot.waits), 0))
        place = str(stack) if stack is not None and stack.frames else ""
        rows.append((*head, str(order.index(slot.id) + 1), str(slot.entered), call, since, place))
        head = ("", "", "", "")
    return rows or [(*head, "", "", "", "", "")]


def _call_of(job: Job, slot: Slot) -> tuple[str, str]:
    """Return what a rank is in, in a communicator, and since when."""
    for wait in slot.waits:
        words = f"{waited_in(job, slot, wait)}, for rank {job.name(slot, wait.peer)}"
        return words, seconds_text(job.seconds_since(wait.since_ns))
    if slot.ended:
        return f"{slot.ended_kind} has ended it", ""
    if call := slot.under_way:
        return str(call), seconds_text(job.seconds_since(call.entered_ns))
    if slot.handed_over and (last := slot.calls.get(slot.entered)):
        return f"{last} was handed to torch's group", seconds_text(job.seconds_since(last.entered_ns))
    if slot.gpu.at_ns:
        return f"no wait; its GPU has finished {counted(slot.gpu.over, 'call')}", ""
    return "no call", ""


def document(job: Job, before: Job, findings: list[Finding]) -> dict[str, Any]:
    """Return everything as data: findings, ranks with their communicators, calls and stacks."""
    return {
        "schema": "commlib.debug",
        "version": 1,
        "job": job.number,
        "command": job.command,
        "findings": [asdict(finding) for finding in findings],
        "said": findings_lines(job, before, findings),
        "ranks": [asdict(rank) for rank in sorted(job.ranks.values(), key=lambda rank: rank.number)],
    }
