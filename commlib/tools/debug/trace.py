"""Traces as Perfetto and chrome://tracing read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Event = dict[str, Any]


def named(what: str, rank: int, at: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": rank, "tid": at, "args": {"name": name}}


def trace_text(events: Sequence[Event]) -> str:
    """Return the file: times are microseconds since the first event."""
    first = min((event["ts"] for event in events if "ts" in event), default=0.0)
    moved = [{**event, "ts": round(event["ts"] - first, 3)} if "ts" in event else event for event in events]
    lines = ",\n".join(json.dumps(event) for event in moved)
    return f'{{"displayTimeUnit": "ns", "traceEvents": [\n{lines}\n]}}\n'
