"""Slow jobs: how ranks share their time between the program, waiting and moving data, which rank is late, how fast."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import fmean, median

from commlib.tools.debug.sample import Kind, Look, Place, Watched, blamed, kind_of

LATE_SHARE = 0.05  # of the time that others wait for it: less is none to speak of
_TIMES, _TIMES_WAITS = 2.5, 1.5  # a late rank keeps others so much longer than any other does, and than it waits itself
_PARTS, _PARTS_LATE, _PARTS_SHARE = 10, 3, 0.6  # and does so in so large a share of the parts in which others wait
_BLOCKS = 40

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
    """Where the time of one kind of call goes, by rank."""

    op: str
    dtype: str
    count: int
    algorithm: str
    world: int
    ranks: dict[int, Share] = field(default_factory=dict)
    rate: Rate | None = None

    @property
    def share(self) -> float:
        """The mean share of the ranks' time."""
        return fmean(share.waits + share.moves for share in self.ranks.values())


@dataclass
class Slowness:
    """What is known of a job's speed."""

    seconds: float
    looks: int
    ranks: list[RankTime]
    ops: list[OpTime]
    late: list[RankTime]


def slowness(watched: Watched, traffic: Traffic) -> Slowness:
    """Sum up what was seen."""
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
    """Return how many collectives a process has entered meanwhile."""
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
