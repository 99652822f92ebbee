"""What a launcher says of the ranks that it has started, before it ends them."""

from __future__ import annotations

from commlib.debug import explained
from commlib.debug.jobs import Job, job_of
from commlib.tools.debug.format import call_of, stack_text
from commlib.tools.debug.host import jobs_here, starting_here


def explained_below(pid: int) -> list[str]:
    """Say what keeps the ranks that a process has started; nothing where that fails, as they must be ended."""
    try:
        return [line for records in jobs_here(pid) for line in explained(record.pid for record in records)]
    except Exception:
        return []


def ranks_below(pid: int) -> list[str]:
    """Say what each rank is in that a process has started; nothing where that fails, as they must be ended."""
    try:
        lines = [f"rank {one.rank} {one}" for one in starting_here(pid)]
        for records in jobs_here(pid):
            lines += _ranks_lines(job_of(records))
    except Exception:
        return []
    return lines


def _ranks_lines(job: Job) -> list[str]:
    job.ask_stacks(set(job.ranks))
    lines = []
    for rank in sorted(job.ranks.values(), key=lambda rank: rank.number):
        calls = [call_of(job, slot) for slot in rank.slots if not slot.closed]
        text = "; ".join(call for call, since in calls if since) or "no call"
        place = stack_text(rank, rank.slots)
        lines.append(f"rank {rank.number} was in {text}" + (f", at {place}" if place else ""))
    return lines
