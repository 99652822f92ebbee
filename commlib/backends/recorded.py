"""Recorded: the record of a communicator that native code does not run, for `commlib debug`."""

from __future__ import annotations

import json
import secrets
import socket
from typing import TYPE_CHECKING

from commlib import env
from commlib.bootstrap.world import World
from commlib.debug.card import Card, own_card
from commlib.native import library

if TYPE_CHECKING:
    from commlib._native import Recorder


def open_record(world: World, backend: str, timeout_s: float) -> tuple[Recorder | None, int]:
    """Begin a record, as all ranks of a world do at once, and return its number; None: there is no room for so many.

    Of the backend "torch" it is known when calls end; of "torch nccl" and such, only that they were handed over.
    """
    mine = own_card(env.HOST.get() or socket.gethostname())
    told = world.all_gather(json.dumps([secrets.randbits(62), str(mine)]).encode(), timeout_s)
    cards = [Card.read(json.loads(said)[1]) for said in told]
    if world.size > library.most_shm_ranks():
        return None, 0
    names = list(world.names or range(world.size))
    pids = [card.number for card in cards]
    number = json.loads(told[0])[0]
    return library.open_recorder(backend, number, world.rank, timeout_s, pids, names), number
