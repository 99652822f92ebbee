"""Recorded: the record of a communicator that native code does not run, for `commlib debug`, also on other hosts."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from commlib import env
from commlib.bootstrap.address import source_address
from commlib.bootstrap.world import World
from commlib.debug.answering import ANSWERERS, Answering, keep_cards
from commlib.debug.card import Card, own_card
from commlib.native import library

if TYPE_CHECKING:
    from commlib._native import Recorder


class Recorded:
    """A record that all ranks of a world begin at once; `recorder` is None where it has no room for so many ranks.

    Of the backend "torch" it is known when calls end; of "torch nccl" and such, only that they were handed over.
    """

    recorder: Recorder | None = None

    def __init__(self, world: World, backend: str, timeout_s: float) -> None:
        mine = own_card(env.HOST.get() or socket.gethostname())
        told = world.all_gather(json.dumps([secrets.randbits(62), str(mine)]).encode(), timeout_s)
        cards = [Card.read(json.loads(said)[1]) for said in told]
        self.id: int = json.loads(told[0])[0]
        self._answering: Answering | None = None
        self._fd = -1
        if len({card.place for card in cards}) > 1:
            self._answer(world, cards, timeout_s)
        if world.size <= library.most_shm_ranks():
            pids = [card.number for card in cards]
            self.recorder = library.open_recorder(backend[:11], self.id, world.rank, timeout_s, pids)

    def _answer(self, world: World, cards: list[Card], timeout_s: float) -> None:
        """Have some ranks of each host answer readers on others, and keep where."""
        mine = cards[world.rank]
        addresses = [said.decode() for said in world.all_gather(world.address.encode(), timeout_s)]
        others = [address for address, card in zip(addresses, cards, strict=True) if card.place != mine.place]
        if world.rank in [rank for rank, card in enumerate(cards) if card.place == mine.place][:ANSWERERS]:
            with suppress(OSError):
                self._answering = Answering(_own_address(others))
                mine = replace(mine, address=self._answering.address, key=self._answering.key)
        told = [Card.read(said) for said in world.all_gather(str(mine).encode(), timeout_s)]
        signed = [replace(card, key=_signed(card.key)) for card in told]
        self._fd = keep_cards(signed)
        if self._answering is not None:
            self._answering.start(signed, signed[world.rank].key)

    def close(self) -> None:
        """End it; twice is fine."""
        if self.recorder is not None:
            self.recorder.close()
        if self._answering is not None:
            self._answering.close()
        if self._fd >= 0:
            os.close(self._fd)
        self._answering, self._fd = None, -1


def _own_address(others: list[str]) -> str:
    """Return the address at which other hosts reach this one, as packets to one of them have it."""
    known = next((address for address in others if address), "")
    return source_address(known) if known else socket.gethostbyname(socket.gethostname())


def _signed(key: str) -> str:
    """Return a key that only who knows the ranks' secret, too, can tell."""
    return key and hmac.new(env.SECRET.get().encode(), key.encode(), "sha256").hexdigest()
