"""Packets: a slot is written again only when its reader is known to have read it, whatever calls follow each other.

A model of the order in which kernels send and take (csrc/device: oneshot, scatter, exchange): the races it looks for
need ranks that are far apart, and may never show on a machine.
"""

import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from commlib.build.sources import csrc

AHEAD = int(re.search(r"kAhead = (\d+);", (csrc() / "include/commlib/job.h").read_text()).group(1))
SLOTS, LAMPORT_SLOTS = 2 * AHEAD, 4 * AHEAD
LOOKS_BACK = SLOTS  # who takes a number sees that the slot of so many before is empty
MOST_STEPS = 3 * SLOTS // 2
DRAWS = 150

Op = tuple[str, int, int]  # "send" or "take", the number, the peer; or "begin" of a call


def exchanged(steps: int, of_round: int, peers: list[int]) -> Iterator[Op]:
    """send_and_take, in oneshot.cuh."""
    lead = of_round if steps > 4 else 2 * of_round
    sent = 0
    for taken in range(0, steps, of_round):
        while sent < min(taken + lead, steps):
            yield from (("send", number, peer) for number in rounds(sent, of_round, steps) for peer in peers)
            sent += of_round
        yield from (("take", number, peer) for number in rounds(taken, of_round, steps) for peer in peers)


def rounds(first: int, of_round: int, steps: int) -> range:
    """Return the numbers of one round."""
    return range(first, min(first + of_round, steps))


def in_two_phases(steps: int, of_round: int, peers: list[int]) -> Iterator[Op]:
    """all_reduce_in_parts, in scatter.cuh: the parts of a round have the numbers before those of its results."""

    def ops(what: str, first: int, count: int) -> Iterator[Op]:
        yield from ((what, number, peer) for number in range(first, first + count) for peer in peers)

    for first in range(0, steps, of_round):
        count, after = (len(rounds(at, of_round, steps)) for at in (first, first + of_round))
        if first == 0:
            yield from ops("send", 0, count)
        yield from ops("take", 2 * first, count)
        yield from ops("send", 2 * first + count, count)
        yield from ops("send", 2 * (first + count), after)
        yield from ops("take", 2 * first + count, count)


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


def from_root(steps: int, rank: int, root: int, peers: list[int]) -> Iterator[Op]:
    """broadcast_in_parts, in collectives/broadcast/lsa_ll128_twoshot.cu: parts are taken from the root alone."""
    for k in range(steps):
        if rank != root:
            yield "take", 2 * k, root
        elif k == 0:
            yield from (("send", 0, peer) for peer in peers)
        yield from (("send", 2 * k + 1, peer) for peer in peers)
        if rank == root and k + 1 < steps:
            yield from (("send", 2 * k + 2, peer) for peer in peers)
        yield from (("take", 2 * k + 1, peer) for peer in peers)


@dataclass(frozen=True)
class Rows:
    """PacketRows, in row_packets.cuh: rows of so many steps, taken `at_once`; `ahead`: of the row before."""

    count: int
    steps: int
    at_once: int
    ahead: bool
    phases: int

    def ops(self, rank: int, world: int) -> Iterator[Op]:
        """Return what a rank does."""
        first = range(AHEAD)
        if self.ahead:
            yield from self._sent(rank, world, 0, first)
        for row in range(self.count):
            if not self.ahead:
                yield from self._sent(rank, world, row, first)
            for at in range(0, self.steps, self.at_once):
                chunk = range(at, at + self.at_once)
                yield from self._taken(rank, world, row, chunk)
                yield from self._sent(rank, world, row, range(chunk.start + AHEAD, chunk.stop + AHEAD))
            if self.ahead and row + 1 < self.count:
                yield from self._sent(rank, world, row + 1, first)

    def _numbers(self, row: int, places: range) -> range:
        return range(row * self.steps + places.start, row * self.steps + min(places.stop, self.steps))

    def _peers(self, rank: int, world: int, row: int) -> list[int]:
        """In two phases the owner hears from all, and the others from the owner."""
        return others(rank, world) if self.phases == 1 or rank == row % world else [row % world]

    def _sent(self, rank: int, world: int, row: int, places: range) -> Iterator[Op]:
        if self.phases == 1 or rank != row % world:
            for number in self._numbers(row, places):
                yield from (("send", number, peer) for peer in self._peers(rank, world, row))

    def _taken(self, rank: int, world: int, row: int, places: range) -> Iterator[Op]:
        """Take parts or sums; the owner then sends the sums."""
        whats = ("take", "send") if self.phases == 2 and rank == row % world else ("take",)
        for what in whats:
            for number in self._numbers(row, places):
                yield from ((what, number, peer) for peer in self._peers(rank, world, row))


def others(rank: int, world: int) -> list[int]:
    """All ranks but this one."""
    return [r for r in range(world) if r != rank]


def calls_in_a_row(world: int, draw: random.Random, kinds: str, slots: int) -> list[list[Op]]:
    """Return what each rank does in some calls; a short one may leave numbers out (scatter.cuh)."""
    programs: list[list[Op]] = [[] for _ in range(world)]
    base = 0
    for _ in range(draw.randint(2, 8)):
        kind, steps = draw.choice(kinds.split()), draw.randint(1, MOST_STEPS)
        of_round = draw.randint(1, 2)
        in_rows = Rows(steps, draw.randint(1, 8), draw.randint(1, AHEAD), draw.random() < 0.5, draw.randint(1, 2))
        lengths = {(a, b): draw.randint(0, steps) for a in range(world) for b in range(world)}
        for rank, program in enumerate(programs):
            peers = others(rank, world)
            if kind == "moves":
                ops, used = moved(steps, rank, peers, lengths), -(-steps // AHEAD) * AHEAD
            elif kind == "rows":
                ops, used = in_rows.ops(rank, world), in_rows.count * in_rows.steps
            elif kind == "from_root":
                ops, used = from_root(steps, rank, of_round % world, peers), 2 * steps
            elif kind == "exchange":
                ops, used = exchanged(steps, of_round, peers), steps
            else:
                ops, used = in_two_phases(steps, of_round, peers), 2 * steps
            program += [("begin", 0, 0), *((what, base + number, peer) for what, number, peer in ops)]
        base += max(used, slots // 2) if draw.random() < 0.5 else used
    return programs


def free_at(program: list[Op], looks_back: int) -> dict[tuple[int, int], int]:
    """Where a rank knows of each slot, by peer and number, that it is free: at once, or when it looks back.

    The end of a call, too, orders the stores that made slots empty.
    """
    known, unknown = dict[tuple[int, int], int](), set[tuple[int, int]]()
    for at, (what, number, peer) in enumerate([*program, ("begin", 0, 0)]):
        if what == "take":
            unknown.add((peer, number))
        done = {slot for slot in unknown if what == "begin" or (what == "take" and slot[1] + looks_back <= number)}
        known |= dict.fromkeys(done, at)
        unknown -= done
    return known


def unsafe(programs: list[list[Op]], slots: int, looks_back: int) -> str | None:
    """Return a send into a slot that may not be free: no message tells the sender of it."""
    world = len(programs)
    free = [free_at(program, looks_back) for program in programs]
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
                    if known[rank][peer] < free[peer].get((rank, number - slots), -1):
                        return f"rank {rank} writes number {number} over {number - slots} of rank {peer}"
                    messages[rank, peer, number] = list(known[rank])
                done[rank] += 1
        if done == before:
            return "all ranks wait"
    return None


WITHOUT_MOVES = "exchange two_phases rows"
# With a flag in each packet, and without: there a slot must be empty before it is written again.
FLAGS, LAMPORT = (SLOTS, 0), (LAMPORT_SLOTS, LOOKS_BACK)


def main() -> int:
    """Draw calls for two to four ranks under both rules; with one slot less, some must be unsafe."""
    faults = []
    for slots, looks_back in (FLAGS, LAMPORT):
        kinds = f"{WITHOUT_MOVES} moves from_root" if (slots, looks_back) == FLAGS else WITHOUT_MOVES
        for world in (2, 3, 4):
            draw = random.Random(world)
            found = (unsafe(calls_in_a_row(world, draw, kinds, slots), slots, looks_back) for _ in range(DRAWS))
            faults += [f"{slots} slots, {world} ranks: {fault}" for fault in found if fault]
        draw = random.Random(0)
        fewer = [unsafe(calls_in_a_row(2, draw, WITHOUT_MOVES, slots), slots - 1, looks_back) for _ in range(DRAWS)]
        if not any(fewer) or "all ranks wait" in fewer:
            faults.append(f"{slots} slots: one less would do")
    print("\n".join(faults) or "no packet is written over before it was read")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
