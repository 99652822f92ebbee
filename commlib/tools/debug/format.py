"""Texts and tables that the pages of a job share."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest

from commlib.counts import counted
from commlib.debug.format import seconds_text, waited_in
from commlib.debug.jobs import Job, Rank
from commlib.debug.record import Slot


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
    """Break lines between words, at the terminal's width."""
    columns = max(shutil.get_terminal_size().columns, 40)
    broken = (textwrap.wrap(line, columns, subsequent_indent="    ", break_on_hyphens=False) for line in lines)
    return [*chain(*broken)]


def clipped(line: str) -> str:
    """Cut a line to the terminal's width: command lines can be long."""
    columns, line = max(shutil.get_terminal_size().columns, 40), line.removesuffix(", ")  # one that ended has none
    return line if len(line) <= columns else f"{line[: columns - 1]}…"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]
