"""What a rank adds to its record and to its errors: where its program makes a call, and who waits for whom."""

from __future__ import annotations

import os

from commlib import lane
from commlib.debug.findings import findings_lines, findings_of
from commlib.debug.format import call_of, stack_text
from commlib.debug.jobs import Job, job_of, jobs_here, look, starting_here

_KINDS = ("CommTimeout", "PeerLost")
_LINES, _BYTES = 8, 2500


def call_site() -> tuple[bytes, str]:
    """Return the place in the program of the call under way."""
    return b"", lane.call_site()


def explain(communicator: str, kind: str) -> tuple[bytes, str]:
    """Return what the ranks of a communicator are in, for the error that ends it; nothing where that fails."""
    if kind not in _KINDS:
        return b"", ""
    try:
        slot = look([os.getpid()]).ranks[os.getpid()].slot(int(communicator))
    except Exception:  # the error itself matters more
        return b"", ""
    lines = explained([peer.pid for peer in slot.peers], min(1.0, slot.timeout_s / 2)) if slot else []
    return b"", "\n".join(lines).encode()[:_BYTES].decode(errors="ignore")


def explained_below(pid: int) -> list[str]:
    """Say what keeps the ranks that a process has started; nothing where that fails, as they must be ended."""
    try:
        jobs = jobs_here(pid)
    except Exception:
        return []
    lines = []
    for records in jobs:
        lines += explained([record.pid for record in records])
        for record in records:
            record.close()
    return lines


def ranks_below(pid: int) -> list[str]:
    """Say what each rank is in that a process has started; nothing where that fails, as they must be ended."""
    try:
        lines = [f"rank {one.rank} {one}" for one in starting_here(pid)]
        for records in jobs_here(pid):
            job = job_of(records)
            job.ask_stacks(set(job.ranks))
            lines += _ranks_lines(job)
            for record in records:
                record.close()
    except Exception:
        return []
    return lines


def _ranks_lines(job: Job) -> list[str]:
    lines = []
    for rank in sorted(job.ranks.values(), key=lambda rank: rank.number):
        calls = [call_of(job, slot) for slot in rank.slots if not slot.closed]
        text = "; ".join(call for call, since in calls if since) or "no call"
        place = stack_text(rank, rank.slots)
        lines.append(f"rank {rank.number} was in {text}" + (f", at {place}" if place else ""))
    return lines


def explained(pids: list[int], stuck_s: float = 0.0) -> list[str]:
    """Say in a few lines what keeps these processes, of which one may be gone; nothing where that fails."""
    try:
        job = look(dict.fromkeys(pids))
        findings = [one for one in findings_of(job, stuck_s=stuck_s) if one.kind not in ("ended", "launcher")]
        job.ask_stacks({pid for finding in findings for pid in finding.threads})
        return findings_lines(job, None, findings)[:_LINES]
    except Exception:
        return []
