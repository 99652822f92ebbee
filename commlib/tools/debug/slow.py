"""`commlib debug --slow`: how ranks share their time between the program, waiting and moving data, and who is late."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any

from commlib.counts import counted
from commlib.debug.format import ranks_text
from commlib.debug.jobs import Job
from commlib.tools.debug.page import clipped, table
from commlib.tools.debug.sample import Kind, Look, Place, Watched, blamed, kind_of

LATE_SHARE = 0.05  # of the time that others wait for it: less is none to speak of
_TIMES, _TIMES_WAITS = 2.5, 1.5  # a late rank keeps others so much longer than any other does, and than it waits itself
_PARTS, _PARTS_LATE, _PARTS_SHARE = 10, 3, 0.6  # and does so in so large a share of the parts in which others wait
_BLOCKS = 40
_BARS = " ▁▂▃▄▅▆▇█"
_SHOWN = 6
_STATES = ("program", "moves", "waits")

Traffic = Callable[[str, str, int, int], tuple[int, float]]
"""Of operation, type, elements and ranks: the bytes that nccl-tests prints, and those that its bus bandwidth counts."""


@dataclass
class Share:
    """A rank's time, or its time in one kind of call: each as a share of all the time."""

    waits: float = 0.0
    moves: float = 0.0


@dataclass
class RankTime:
    """Where the time of a rank goes; `keeps`: the mean share in which each other rank waits for it."""

    rank: int
    pid: int
    program: float
    waits: float
    moves: float
    keeps: float
    keeps_in_call: float  # thereof, while it is in a call itself
    each_s: float  # that each other rank waits for it, for each call that it makes
    calls: int
    longest_s: float
    blocks: list[float]  # share of waiting, over time


@dataclass
class Rate:
    """How fast calls of one kind are, as far as they are timed: those of 64 KiB and more."""

    calls: int
    each_s: float  # from a rank's entry to its end
    moving_s: float  # from the entry of the last rank
    late_s: float  # between the first rank's entry and the last one's
    num_bytes: int
    bus: float  # GB/s, of each_s
    moving_bus: float  # of moving_s
    best_bus: float  # of the fastest of these calls


@dataclass
class OpTime:
    op: str
    dtype: str
    count: int
    algorithm: str
    world: int
    ranks: dict[int, Share] = field(default_factory=dict)
    rate: Rate | None = None

    @property
    def share(self) -> float:
        return fmean(share.waits + share.moves for share in self.ranks.values())


@dataclass
class Slowness:
    seconds: float
    looks: int
    ranks: list[RankTime]
    ops: list[OpTime]
    late: list[RankTime]


def slowness(watched: Watched, traffic: Traffic) -> Slowness:
    moments = [(at, looks, list(blamed(watched.job, looks))) for at, looks in watched.looks]
    ranks = [_rank_time(watched, pid, moments) for pid in sorted({pid for pid, _ in watched.calls})]
    ranks.sort(key=lambda one: one.rank)
    ops = sorted(_op_times(watched, traffic), key=lambda one: -one.share)
    return Slowness(watched.seconds, len(moments), ranks, ops, list(_late(ranks, moments)))


Moments = list[tuple[int, dict[Place, Look], list[tuple[Place, int]]]]


def _rank_time(watched: Watched, pid: int, moments: Moments) -> RankTime:
    states = [_state(pid, looks) for _, looks, _ in moments]
    waiting = [len({place[0] for place, by in blames if by == pid}) for _, _, blames in moments]
    others = max(len({place[0] for place in watched.calls}) - 1, 1)
    total, count = max(len(moments) * others, 1), max(len(states), 1)
    calls, share = _calls(watched, pid), sum(waiting) / total
    longest = (at - looks[place].since_ns for at, looks, blames in moments for place, by in blames if by == pid)
    size = max(len(states) // _BLOCKS, 1)
    return RankTime(
        rank=watched.job.ranks[pid].number,
        pid=pid,
        program=states.count("program") / count,
        waits=states.count("waits") / count,
        moves=states.count("moves") / count,
        keeps=share,
        keeps_in_call=sum(n for n, state in zip(waiting, states, strict=True) if state != "program") / total,
        each_s=share * watched.seconds / max(calls, 1),
        calls=calls,
        longest_s=max(longest, default=0) / 1e9,
        blocks=[states[at : at + size].count("waits") / size for at in range(0, len(states) - size + 1, size)],
    )


def _state(pid: int, looks: dict[Place, Look]) -> str:
    mine = [look for place, look in looks.items() if place[0] == pid]
    if any(look.peer >= 0 for look in mine):
        return "waits"
    return "moves" if any(look.kind for look in mine) else "program"


def _calls(watched: Watched, pid: int) -> int:
    then = watched.before.ranks.get(pid)
    olds = {slot.id: slot for slot in then.slots} if then else {}
    return sum(slot.calls_since(olds.get(slot.id, slot)) for slot in watched.job.ranks[pid].slots)


def _late(ranks: list[RankTime], moments: Moments) -> Iterator[RankTime]:
    """Ranks for which others wait: clearly more than for the rest, more than they wait themselves, and again and again.

    Where ranks take turns on too few cores, each waits for each: that makes none of them late.
    """
    size = max(len(moments) // _PARTS, 1)
    cut = [moments[at : at + size] for at in range(0, len(moments), size)]
    parts = [Counter(by for _, _, blames in part for _, by in blames) for part in cut]
    busy = [part for part in parts if part.total() >= LATE_SHARE * size]
    for one in ranks:
        others = [other.keeps for other in ranks if other is not one]
        clear = one.keeps >= max(LATE_SHARE, _TIMES * max(others, default=0.0), _TIMES_WAITS * one.waits)
        first = sum(part.most_common(1)[0][0] == one.pid for part in busy)
        if clear and first >= max(_PARTS_LATE, _PARTS_SHARE * len(busy)):
            yield one


def _op_times(watched: Watched, traffic: Traffic) -> Iterator[OpTime]:
    seen: dict[tuple[int, Kind], dict[int, Counter[bool]]] = defaultdict(lambda: defaultdict(Counter))
    for _, looks in watched.looks:
        for (pid, communicator), look in looks.items():
            if look.kind is not None:
                seen[communicator, look.kind][pid][look.peer >= 0] += 1
    moments = max(len(watched.looks), 1)
    for (communicator, kind), by_pid in seen.items():
        slots = watched.before.communicators.get(communicator)  # it may have been closed since
        if slots:
            op = OpTime(*kind, world=slots[0].world)
            for pid in (pid for pid, other in watched.calls if other == communicator):
                counts = by_pid[pid]
                op.ranks[watched.job.ranks[pid].number] = Share(counts[True] / moments, counts[False] / moments)
            op.rate = _rate(watched, communicator, kind, slots[0].world, traffic)
            yield op


def _rate(watched: Watched, communicator: int, kind: Kind, world: int, traffic: Traffic) -> Rate | None:
    """Compare the ranks' calls number by number: what the last one to come takes is what the data needs."""
    rings = [calls for (_, other), calls in watched.calls.items() if other == communicator]
    since = watched.before.at_ns
    common = set.intersection(*(set(calls) for calls in rings)) if len(rings) == world else set()
    rows = [[calls[number] for calls in rings] for number in common if kind_of(rings[0][number]) == kind]
    made = [row for row in rows if all(call.finished_ns and call.entered_ns >= since for call in row)]
    if not made:
        return None
    num_bytes, bus_bytes = traffic(kind[0], kind[1], kind[2], world)
    moving = [max(call.finished_ns for call in row) - max(call.entered_ns for call in row) for row in made]
    spread = [max(call.entered_ns for call in row) - min(call.entered_ns for call in row) for row in made]
    each = fmean(call.finished_ns - call.entered_ns for row in made for call in row)
    moved = max(median(moving), 1)
    fastest = max(min(moving), 1)
    rates = [bus_bytes / max(ns, 1) for ns in (each, moved, fastest)]
    return Rate(len(made), each / 1e9, moved / 1e9, fmean(spread) / 1e9, num_bytes, *rates)


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
    return {
        "job": job.number,
        "command": job.command,
        "sentences": sentences(job, slow, where, cores),
        **asdict(slow),
        "where": {str(job.ranks[pid].number): dict(places) for pid, places in where.items()},
    }
