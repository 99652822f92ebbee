"""What `commlib debug` shows of a job: what is wrong, then a line for each rank; and lines that a launcher prints."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from commlib.counts import counted, ranks_text
from commlib.debug.findings import Finding, explained, findings_lines
from commlib.debug.format import members_text, seconds_text, waited_in
from commlib.debug.jobs import Job, Rank, job_of
from commlib.debug.record import Slot
from commlib.tools.debug.host import jobs_here, starting_here
from commlib.tools.report.formats import MIN_COLUMNS, fold

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


def page(job: Job, before: Job, findings: list[Finding], style: Callable[[str], str] = str) -> str:
    """Return the text; `style` marks the lines of what is wrong."""
    lines = [clipped(f"{_name(job)}, {job.command}"), "", *_unrecorded_lines(job)]
    wrong = [style(line) for line in wrapped(findings_lines(job, before, findings))]
    lines += [*([] if any(one.serious for one in findings) else [_progress_text(job, before)]), *wrong, ""]
    rows: list[tuple[str, ...]] = [("rank", "process", "state", "core", "comm", "calls", "in")]
    for rank in _in_order(job):
        rows += _rows(job, rank)
    lines += table(rows, shutil.get_terminal_size().columns)
    several = [f"communicator {n}: {members_text(job, of[0])}" for n, of in enumerate(job.communicators.values(), 1)]
    return "\n".join([*lines, *(["", *several] if len(several) > 1 else [])])


def brief(job: Job, before: Job) -> str:
    return clipped(f"{_name(job)}: {_progress_text(job, before)}, {job.command}")


def document(job: Job, before: Job, findings: list[Finding]) -> dict[str, Any]:
    """Return the findings as data, and in sentences, each with what the ranks to look at are doing."""
    return {
        "job": job.number,
        "command": job.command,
        "ranks": [rank.number for rank in _in_order(job)],
        "findings": [asdict(finding) for finding in findings],
        "sentences": findings_lines(job, before, findings),
    }


def records_document(job: Job) -> dict[str, Any]:
    return {"records": [asdict(rank) for rank in _in_order(job)]}


def _in_order(job: Job) -> list[Rank]:
    return sorted(job.ranks.values(), key=lambda rank: rank.number)


def _name(job: Job) -> str:
    living = sum(bool(rank.slots) for rank in job.ranks.values())
    return f"job {job.number}: {living} of {counted(len(job.ranks), 'rank')} here"


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
    count = counted(max(rank.unrecorded for rank in ranks), "communicator")
    named = ranks_text(rank.number for rank in ranks)
    return [f"of up to {count} of {named} nothing is known: the record of a rank has no room for them"]


def _rows(job: Job, rank: Rank) -> list[tuple[str, ...]]:
    process, order = rank.process, list(job.communicators)
    core = str(process.core) if process.core >= 0 else ""
    head = (
        str(rank.number),
        "elsewhere" if rank.elsewhere else str(rank.pid),
        _STATES.get(process.state, process.state),
        core,
    )
    rows: list[tuple[str, ...]] = []
    for slot in [slot for slot in rank.slots if not slot.closed]:
        number = str(order.index(slot.id) + 1)
        text, since = call_of(job, slot)
        place = stack_text(rank, [slot])
        parts = [text, *([f"for {since}"] if since else []), *([f"at {place}"] if place else [])]
        rows.append((*head, number, str(slot.entered), ", ".join(parts)))
        head = ("", "", "", "")
    return rows or [(*head, "", "", "")]


def call_of(job: Job, slot: Slot) -> tuple[str, str]:
    """Return what a rank is in, in a communicator, and since when; the second is empty if it is in no call."""
    for wait in slot.waits:
        text = f"{waited_in(job, slot, wait)}, for rank {job.name(slot, wait.peer)}"
        return text, seconds_text(job.seconds_since(wait.since_ns))
    if slot.ended:
        return f"{slot.ended_kind} has ended it", ""
    if call := slot.under_way:
        return str(call), seconds_text(job.seconds_since(call.entered_ns))
    if slot.handed_over and (last := slot.calls.get(slot.entered)):
        return f"{last} was handed to torch's group", seconds_text(job.seconds_since(last.entered_ns))
    if slot.gpu.at_ns:
        return f"no wait; its GPU has finished {counted(slot.gpu.over, 'call')}", ""
    return "no call", ""


def stack_text(rank: Rank, slots: Iterable[Slot]) -> str:
    """Say where the thread is that waits in one of these communicators, else the main one; empty: it is not known."""
    stack = rank.stack(next((wait.thread for slot in slots for wait in slot.waits), 0))
    return str(stack) if stack is not None and stack.frames else ""


def wrapped(lines: Iterable[str]) -> list[str]:
    return fold(lines, shutil.get_terminal_size().columns, "    ")


def clipped(line: str) -> str:
    """Cut a line to the terminal's width: command lines can be long."""
    columns, line = max(shutil.get_terminal_size().columns, MIN_COLUMNS), line.removesuffix(", ")  # of an ended job
    return line if len(line) <= columns else f"{line[: columns - 1]}…"


def table(rows: Sequence[Sequence[str]], columns: int = 1 << 16) -> list[str]:
    """Return the lines of a table; a last cell that is too wide for the terminal goes on below."""
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    heads = ["".join(f"{cell:{width}}  " for cell, width in zip(row, widths, strict=False)) for row in rows]
    room = max(columns - len(heads[0]), MIN_COLUMNS)
    lines = []
    for head, row in zip(heads, rows, strict=True):
        first, *rest = textwrap.wrap(row[-1], room, break_on_hyphens=False) or [""]
        lines += [(head + first).rstrip(), *(" " * len(head) + part for part in rest)]
    return lines


def explained_below(pid: int) -> list[str]:
    """Say which rank holds up those that a process has started; nothing where that fails, as they must be ended."""
    try:
        return [line for records in jobs_here(pid) for line in explained(record.pid for record in records)]
    except Exception:
        return []


def ranks_below(pid: int) -> list[str]:
    """Say what each rank is in that a process has started; nothing where that fails, as they must be ended."""
    try:
        lines = [f"rank {one.rank} {one}" for one in starting_here(pid)]
        for job in map(job_of, jobs_here(pid)):
            job.ask_stacks(set(job.ranks))
            lines += [_rank_line(job, rank) for rank in _in_order(job)]
    except Exception:
        return []
    return lines


def _rank_line(job: Job, rank: Rank) -> str:
    calls = [call_of(job, slot) for slot in rank.slots if not slot.closed]
    text = "; ".join(call for call, since in calls if since) or "no call"
    place = stack_text(rank, rank.slots)
    return f"rank {rank.number} was in {text}" + (f", at {place}" if place else "")
