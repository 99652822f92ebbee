"""What the ranks of a job are in, seen from outside: records read, who waits for whom.

`listen` and `explain` are for the rank itself, the rest for those who look; none of it loads torch or native code.
"""

from __future__ import annotations

from commlib.debug.findings import Finding, explain, explained, findings_lines, findings_of
from commlib.debug.jobs import look
from commlib.debug.stacks import listen

__all__ = [
    "Finding",
    "explain",
    "explained",
    "findings_lines",
    "findings_of",
    "listen",
    "look",
]
