"""The world of ranks of one host that find each other at a door of rank 0's."""

from __future__ import annotations

import os
import socket
import time
import weakref
from collections.abc import Callable

from commlib.bootstrap.door import ROUND_S, Door, Greeting, Place, Reply, doors, knock
from commlib.bootstrap.exchange import ServedWorld
from commlib.bootstrap.launcher import Identity
from commlib.bootstrap.neighbours import card, local_rank
from commlib.debug.starting import Waiting
from commlib.errors import CommTimeout

NAP_S, LONGEST_NAP_S = 0.002, 0.1  # between two looks for a door
PATIENCE_S = 1.0  # for a door to answer, at first


def meet(name: str, place: Place, who: Identity, timeout_s: float) -> ServedWorld:
    """Join the other ranks at a place of this host."""
    deadline = time.monotonic() + timeout_s
    door = Door(place, who.size) if who.rank == 0 else None
    with Waiting(who.rank, who.size, timeout_s) as waiting:
        channel = door.own_channel() if door else _enter(place, who, timeout_s, waiting)
    world = MetWorld(name, who, channel, door)
    try:
        if door:
            door.look_for_others(PATIENCE_S)
        cards = world.all_gather(card(), round(max(deadline - time.monotonic(), 0.1), 1))
    except BaseException:
        world.close()
        raise
    world.local_rank = local_rank(who.rank, cards) if who.local_rank is None else who.local_rank
    return world


class MetWorld(ServedWorld):
    """The world of one meeting; rank 0 holds the door."""

    server = "rank 0"

    def __init__(self, name: str, who: Identity, channel: socket.socket, door: Door | None) -> None:
        super().__init__(who.rank, who.size, channel)
        self.name, self._door = name, door
        if door is not None:  # whoever forgets to close a communicator leaves no door behind
            weakref.finalize(self, door.abandon).atexit = False

    def when_mixed(self, end: Callable[[str], None]) -> None:
        """Rank 0's door finds it out."""
        if self._door is not None:
            self._door.when_mixed(end)

    def close(self) -> None:
        """Leave; rank 0 lets the others read first."""
        super().close()
        if self._door is not None:
            self._door.close()
            self._door = None


def _enter(place: Place, who: Identity, timeout_s: float, waiting: Waiting) -> socket.socket:
    """Knock at every door of the place until one lets this rank in."""
    deadline, nap_s, patience_s = time.monotonic() + timeout_s, NAP_S, PATIENCE_S
    greeting, reply = Greeting(who.rank, who.size, os.getpid()), Reply("nobody")
    while True:
        names, round_ends = doors(place), time.monotonic() + ROUND_S
        for name in names:
            reply, channel = knock(name, greeting, min(patience_s, max(deadline - time.monotonic(), 0.01)))
            if channel is not None:
                return channel
            if reply.kind == "wrong":
                raise ValueError(reply.why)
            if reply.kind == "timeout":
                raise CommTimeout(f"rank {who.rank}: {reply.why} ({place.said})")
            patience_s *= 2 if reply.kind == "silent" else 1
            if time.monotonic() > round_ends:
                break
        if time.monotonic() >= deadline:
            waited = f"rank {who.rank} waited {timeout_s:g} s for rank 0 at {place.said}"
            raise CommTimeout(f"{waited}: {_reason(reply if names else Reply('nobody'))}")
        if waiting.due():
            waiting.tell(f"rank 0 at {place.said}")
        time.sleep(nap_s)
        nap_s = min(nap_s * 2, LONGEST_NAP_S)


def _reason(reply: Reply) -> str:
    reasons = {
        "silent": "its process does not answer; is it stopped?",
        "stranger": f"only a process of user {reply.why} serves there; all ranks must run as one user",
        "later": "it is still in a communicator that this rank has left",
    }
    return reasons.get(reply.kind, "nobody serves there; is it running, on this host and as this user?")
