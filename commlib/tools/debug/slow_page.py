"""What `commlib debug --slow` prints: sentences, then where the time of ranks and operations goes; or a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from statistics import fmean
from typing import Any

from commlib.counts import counted
from commlib.debug.format import ranks_text
from commlib.debug.jobs import Job
from commlib.tools.debug.format import clipped, table
from commlib.tools.debug.slow import LATE_SHARE, OpTime, RankTime, Rate, Slowness

_BARS = " ▁▂▃▄▅▆▇█"
_SHOWN = 6
_STATES = ("program", "moves", "waits")


def late_text(job: Job, one: RankTime, where: Counter[str]) -> str:
    """Say which rank is late, by how much, and where it is meanwhile."""
    share, each = f"{one.keeps:.0%} of the time", _short(one.each_s)
    text = f"rank {one.rank} is late: the others wait for it {share}, {each} for each of {counted(one.calls, 'call')}, "
    text += f"{_short(one.longest_s)} at most"
    if one.keeps_in_call > one.keeps / 2:
        text += ". It is in the calls too, but comes on more slowly"
    known = Counter({place: count for place, count in where.items() if place})
    if known:
        place, count = known.most_common(1)[0]
        text += f"; then process {one.pid} is {place} ({count} of {counted(where.total(), 'look')})"
    return text


def _short(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def slow_page(job: Job, slow: Slowness, where: dict[int, Counter[str]], cores: int) -> str:
    """Return the text: who is late first, then where each rank's time goes, then each operation's."""
    head = clipped(f"job {job.number}: {counted(len(slow.ranks), 'rank')} here, {job.command}")
    ended = ", until the job ended" * all(rank.process.gone for rank in job.ranks.values())
    looks = f"{counted(slow.looks, 'look')} in {slow.seconds:.1f} s{ended}"
    lines = [head, looks, "", *sentences(job, slow, where, cores), ""]
    rows: list[tuple[str, ...]] = [("rank", "program", "moves", "waits", "awaited", "waits over time")]
    for one in slow.ranks:
        bars = "".join(_BARS[round(share * (len(_BARS) - 1))] for share in one.blocks)
        shares = (one.program, one.moves, one.waits, one.keeps)
        rows.append((str(one.rank), *(f"{share:.0%}" for share in shares), f"|{bars}|"))
    lines += [*table(rows), ""]
    rows = [("operation", "rank", "waits", "moves", "a call", "late by", "GB/s", "moving", "fastest", "algorithm")]
    for op in slow.ops[:_SHOWN]:
        rows += _op_rows(op)
    return "\n".join([*lines, *table(rows)])


def sentences(job: Job, slow: Slowness, where: dict[int, Counter[str]], cores: int) -> list[str]:
    """Return the sentences."""
    if not slow.ranks:
        return ["no rank has a communicator open"]
    lines = [late_text(job, one, where.get(one.pid, Counter())) for one in slow.late]
    program, moves, waits = (f"{fmean(getattr(one, key) for one in slow.ranks):.0%}" for key in _STATES)
    text = f"ranks wait for others {waits} of their time, move data {moves}, and are in the program {program}"
    lines.append(text if lines else f"no rank is late: {text}")
    if not slow.late and len(slow.ranks) > cores and any(one.waits > LATE_SHARE for one in slow.ranks):
        lines.append(f"{len(slow.ranks)} ranks share {counted(cores, 'core')}: they wait for their turn on these")
    if far := [rank.number for rank in job.ranks.values() if rank.host]:
        lines.append(f"{ranks_text(far)} {'is' if len(far) == 1 else 'are'} on other hosts: run this there, too")
    rated = [op for op in slow.ops if op.rate is not None and op.rate.bus > 0]
    return lines + [_rate_text(op, op.rate) for op in rated[:1] if op.rate is not None]


def _rate_text(op: OpTime, rate: Rate) -> str:
    return (
        f"{_name(op)}: bus bandwidth is {rate.bus:.3g} GB/s with waits, and {rate.moving_bus:.3g} GB/s from when the "
        f"last rank has come, {rate.moving_bus / rate.best_bus:.0%} of the fastest one's"
    )


def _name(op: OpTime) -> str:
    return f"{op.op} {op.dtype}[{op.count}]" if op.dtype and op.count else op.op


def _op_rows(op: OpTime) -> Iterator[tuple[str, ...]]:
    rate = op.rate
    tail: tuple[str, ...] = ("-",) * 5
    if rate is not None:
        rates = (f"{value:.3g}" if value else "-" for value in (rate.bus, rate.moving_bus, rate.best_bus))
        tail = (_short(rate.each_s), _short(rate.late_s), *rates)
    name, tail = _name(op), (*tail, op.algorithm)
    for rank, share in sorted(op.ranks.items()):
        yield (name, str(rank), f"{share.waits:.0%}", f"{share.moves:.0%}", *tail)
        name, tail = "", ()


def slow_document(job: Job, slow: Slowness, where: dict[int, Counter[str]], cores: int) -> dict[str, Any]:
    """Return everything as data."""
    return {
        "schema": "commlib.debug.slow",
        "version": 1,
        "job": job.number,
        "command": job.command,
        "said": sentences(job, slow, where, cores),
        **asdict(slow),
        "where": {str(job.ranks[pid].number): dict(places) for pid, places in where.items()},
    }
