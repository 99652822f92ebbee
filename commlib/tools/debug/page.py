"""What `commlib debug` prints of a job: what is wrong, then a line for each rank; or a document."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import asdict
from typing import Any

from commlib.counts import counted
from commlib.debug import Finding, findings_lines
from commlib.debug.format import members_text, ranks_text
from commlib.debug.jobs import Job, Rank
from commlib.tools.debug.format import call_of, clipped, stack_text, table, wrapped

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


def page(job: Job, before: Job, findings: list[Finding]) -> str:
    """Return the text."""
    lines = [clipped(f"{_name(job)}, {job.command}"), "", *_unrecorded_lines(job)]
    if not any(finding.serious for finding in findings):
        lines.append(_progress_text(job, before))
    lines += [*wrapped(findings_lines(job, before, findings)), ""]
    rows: list[tuple[str, ...]] = [("rank", "process", "state", "core", "comm", "calls", "in", "for", "at")]
    for rank in sorted(job.ranks.values(), key=lambda rank: rank.number):
        rows += _rows(job, rank)
    lines += _folded_table(rows, shutil.get_terminal_size().columns)
    made = enumerate(job.communicators.values(), 1)
    several = ["", *(f"communicator {number}: {members_text(job, slots[0])}" for number, slots in made)]
    return "\n".join([*lines, *several * (len(several) > 2)])


def brief(job: Job, before: Job) -> str:
    """Return one line for a job in which nothing is wrong."""
    return clipped(f"{_name(job)}: {_progress_text(job, before)}, {job.command}")


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


def _folded_table(rows: list[tuple[str, ...]], columns: int) -> list[str]:
    """Return the lines of a table; where it is too wide for the terminal, what a rank is in stands below its row."""
    lines = table(rows)
    if max(map(len, lines)) <= columns:
        return lines
    heads = table([row[:_IN] + row[_IN + 1 : -1] for row in rows])
    lines = heads[:1]
    for head, row in zip(heads[1:], rows[1:], strict=True):
        text = f"{row[_IN]}, at {row[-1]}" if row[-1] else row[_IN]
        lines += [head, *textwrap.wrap(text, max(columns, 40), initial_indent=_INDENT, subsequent_indent=_INDENT)]
    return lines


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
    """Return a row for each communicator that the rank has open."""
    state = _STATES.get(rank.process.state, rank.process.state)
    head = (str(rank.number), rank.place, state, str(rank.process.core) if rank.process.core >= 0 else "")
    order = list(job.communicators)
    rows: list[tuple[str, ...]] = []
    for slot in [slot for slot in rank.slots if not slot.closed]:
        rows.append(
            (*head, str(order.index(slot.id) + 1), str(slot.entered), *call_of(job, slot), stack_text(rank, [slot]))
        )
        head = ("", "", "", "")
    return rows or [(*head, "", "", "", "", "")]
