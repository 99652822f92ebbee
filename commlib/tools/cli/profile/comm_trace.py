"""The trace of `commlib profile comm --trace`: events as Perfetto and chrome://tracing read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commlib.tools.bench.phases import HOST, TRACKS, Span, Traced
from commlib.tools.debug.trace import Event, named

LANES = 1000  # of a track: one for each block


def events_of(rank: int, calls: Sequence[Traced]) -> list[Event]:
    """Return the events of some calls of a rank: it is a process, its host and each block of its kernels a thread."""
    found = list(_lanes(calls))
    names = {(at, name) for at, name, _, _ in found}
    told = [
        named("process_name", rank, 0, f"rank {rank}"),
        *(named("thread_name", rank, *of) for of in sorted(names)),
    ]
    return told + [
        {
            "name": span.phase,
            "cat": "phase",
            "ph": "X",
            "pid": rank,
            "tid": at,
            **_times(span),
            "args": {"call": number},
        }
        for at, _, number, span in found
    ]


def _lanes(calls: Sequence[Traced]) -> Iterator[tuple[int, str, int, Span]]:
    """Yield number and name of a thread, number of the call, and a span on the host's clock."""
    for number, call in enumerate(calls):
        yield from ((0, HOST, number, span) for span in call.host)
        for at, track in enumerate(TRACKS):
            for block, spans in enumerate(call.kernel.get(track, ())):
                lane = 1 + at * LANES + block, f"{track[:-1]} {block}", number
                yield from ((*lane, span.moved(call.shift_ns)) for span in spans)


def _times(span: Span) -> Event:
    return {"ts": span.start_ns * 1e-3, "dur": span.ns * 1e-3}
