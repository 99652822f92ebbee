"""Packets: a slot is written again only when its reader is known to have read it, whatever calls follow each other.

A model of the order in which kernels send and take (csrc/device: oneshot, scatter, exchange): the races it looks for
need ranks that are far apart, and may never show on a machine.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from commlib import jit

AHEAD = int(re.search(r"kAhead = (\d+);", (jit.csrc() / "include/commlib/job.h").read_text()).group(1))
SLOTS = 2 * AHEAD
MOST_STEPS = 3 * SLOTS // 2

Op = tuple[str, int, int]  # "send" or "take", the number, the peer


def exchanged(steps: int, peers: list[int]) -> Iterator[Op]:
    """send_and_take, in oneshot.cuh."""
    lead = 1 if steps > 4 else 2
    sent = taken = 0
    while taken < steps:
        if sent < steps:
            yield from (("send", sent, peer) for peer in peers)
            sent += 1
        if sent < steps and sent < taken + lead:
            continue
        yield from (("take", taken, peer) for peer in peers)
        taken += 1


def in_two_phases(steps: int, peers: list[int]) -> Iterator[Op]:
    """all_reduce_twoshot, in scatter.cuh."""
    for number in range(2 * steps):
        yield from (("send", number, peer) for peer in peers)
        yield from (("take", number, peer) for peer in peers)


def moved(steps: int, rank: int, peers: list[int], lengths: dict[tuple[int, int], int]) -> Iterator[Op]:
    """push_and_take, in exchange.cuh; `lengths` in steps, by sender and receiver."""
    for first in range(0, steps, AHEAD):
        numbers = range(first, min(first + AHEAD, steps))
        for what in ("send", "take"):
            for number in numbers:
                for peer in peers:
                    way = (rank, peer) if what == "send" else (peer, rank)
                    if number == first or number < lengths[way]:
                        yield what, number, peer


def rows(count: int, pairs: int, there: int, at_once: int, goes_ahead: bool, peers: list[int]) -> Iterator[Op]:
    """PacketRows, in row_packets.cuh: a row is `there` of `pairs` steps and a last one, taken `at_once`."""
    size = there + 1 if there else 0
    order = [step if step < there else None for step in range(pairs)] + [there if there else None]

    def ops(what: str, row: int, places: range) -> Iterator[Op]:
        for place in places:
            number = order[place] if place < len(order) else None
            if number is not None:
                yield from ((what, row * size + number, peer) for peer in peers)

    if goes_ahead:
        yield from ops("send", 0, range(AHEAD))
    for row in range(count):
        if not goes_ahead:
            yield from ops("send", row, range(AHEAD))
        for first in range(0, pairs + 1, at_once):
            chunk = range(first, min(first + at_once, pairs + 1))
            yield from ops("take", row, chunk)
            yield from ops("send", row, range(chunk.start + AHEAD, chunk.stop + AHEAD))
        if goes_ahead and row + 1 < count:
            yield from ops("send", row + 1, range(AHEAD))


def calls_in_a_row(world: int, draw: random.Random) -> list[list[Op]]:
    """Return what each rank does in some calls, one after the other."""
    programs: list[list[Op]] = [[] for _ in range(world)]
    base = 0
    for _ in range(draw.randint(2, 8)):
        kind, steps = draw.choice("exchange two_phases moves rows".split()), draw.randint(1, MOST_STEPS)
        pairs, at_once, goes_ahead = draw.choice([1, 2, 4, 8]), draw.randint(1, AHEAD), draw.random() < 0.5
        there = draw.randint(0, pairs)
        lengths = {(a, b): draw.randint(0, steps) for a in range(world) for b in range(world)}
        for rank, program in enumerate(programs):
            peers = [r for r in range(world) if r != rank]
            if kind == "moves":
                ops, used = moved(steps, rank, peers, lengths), -(-steps // AHEAD) * AHEAD
            elif kind == "rows":
                ops, used = rows(steps, pairs, there, at_once, goes_ahead, peers), steps * (there + (there > 0))
            elif kind == "exchange":
                ops, used = exchanged(steps, peers), steps
            else:
                ops, used = in_two_phases(steps, peers), 2 * steps
            program += [(what, base + number, peer) for what, number, peer in ops]
        base += used
    return programs


def unsafe(programs: list[list[Op]], slots: int) -> str | None:
    """Return a send into a slot that its reader may not have read: no message tells the sender of it."""
    world = len(programs)
    taken_at = {
        (rank, peer, number): at
        for rank, program in enumerate(programs)
        for at, (what, number, peer) in enumerate(program)
        if what == "take"
    }
    done = [0] * world
    known = [[-1] * world for _ in range(world)]  # how far each rank knows each to have come
    messages: dict[tuple[int, int, int], list[int]] = {}
    while any(done[rank] < len(programs[rank]) for rank in range(world)):
        before = list(done)
        for rank, program in enumerate(programs):
            while done[rank] < len(program):
                what, number, peer = program[done[rank]]
                if what == "take":
                    if (message := messages.get((peer, rank, number))) is None:
                        break
                    known[rank] = [max(pair) for pair in zip(known[rank], message, strict=True)]
                known[rank][rank] = done[rank]
                if what == "send":
                    if known[rank][peer] < taken_at.get((peer, rank, number - slots), -1):
                        return f"rank {rank} writes number {number} over {number - slots} of rank {peer}"
                    messages[rank, peer, number] = list(known[rank])
                done[rank] += 1
        if done == before:
            return "all ranks wait"
    return None


@pytest.mark.parametrize("world", [2, 3, 4])
def test_no_packet_is_written_over_before_it_was_read(world):
    draw = random.Random(world)
    for _ in range(500):
        assert unsafe(calls_in_a_row(world, draw), SLOTS) is None


def test_one_slot_less_would_not_do():
    draw = random.Random(0)
    found = [unsafe(calls_in_a_row(2, draw), SLOTS - 1) for _ in range(500)]
    assert any(found)
    assert "all ranks wait" not in found
