"""What a rank adds to its record and to its errors: where its program makes a call, and who waits for whom."""

from __future__ import annotations

import os
from collections.abc import Iterable

from commlib import worker
from commlib.debug.findings import findings_lines, findings_of
from commlib.debug.jobs import look

_KINDS = ("CommTimeout", "PeerLost")
_LINES, _BYTES = 8, 2500


def call_site() -> tuple[bytes, str]:
    """Return the place in the program of the call under way."""
    return b"", worker.call_site()


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


def explained(pids: Iterable[int], stuck_s: float = 0.0) -> list[str]:
    """Say in a few lines what keeps these processes, of which one may be gone; nothing where that fails."""
    try:
        job = look(dict.fromkeys(pids))
        findings = [one for one in findings_of(job, stuck_s=stuck_s) if one.kind not in ("ended", "launcher")]
        job.ask_stacks({pid for finding in findings for pid in finding.threads})
        return findings_lines(job, None, findings)[:_LINES]
    except Exception:
        return []
