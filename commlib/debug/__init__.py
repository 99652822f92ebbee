"""What the ranks of a job are in, seen from outside: records read, who waits for whom, in words.

`listen` and `call_site` are the half of a rank, the rest is for whoever asks; none of it loads torch or native code.
"""

from __future__ import annotations

from commlib.debug.answer import call_site, explain, explained_below, listen, ranks_below
from commlib.debug.findings import Finding, findings_of
from commlib.debug.jobs import Job, jobs_here, look
from commlib.debug.page import document, page

__all__ = [
    "Finding",
    "Job",
    "call_site",
    "document",
    "explain",
    "explained_below",
    "findings_of",
    "jobs_here",
    "listen",
    "look",
    "page",
    "ranks_below",
]
