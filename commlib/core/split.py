"""Split: one communicator for each color, made while all ranks of the parent take part in its rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from commlib.bootstrap.world import World
from commlib.errors import CommError, limits_of


class Parent(Protocol):
    """What a split needs of a Communicator, which stands above this layer."""

    rank: int
    size: int
    local_rank: int
    device: torch.device
    world: World

    def all_gather_object(self, obj: T) -> list[T]:
        """Return every rank's object."""

    def close(self) -> None:
        """End it."""


T = TypeVar("T")
P = TypeVar("P", bound=Parent)
_Part = tuple[bool, bytes, str]  # whether this rank is still at work, what it says, and why it failed


class Subworld(World):
    """Some ranks of a parent communicator.

    While the new communicator is being made, a round is a collective of the parent, so that no message of the program's
    is ever taken for one of ours; afterwards the members use the new communicator's own collectives.
    """

    name = "split"

    def __init__(self, parent: Parent, members: list[int]) -> None:
        self._carrier = self._parent = parent
        self._members = members
        self.rank = members.index(parent.rank)
        self.size = len(members)
        self.local_rank, self.address = parent.local_rank, parent.world.address
        self.infos = [parent.world.infos[member] for member in members]
        self.device = parent.device.type

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Exchange among the members; the carrier's own deadline holds."""
        if self._carrier is not self._parent:
            return self._carrier.all_gather_object(data)
        everyone: list[_Part] = self._parent.all_gather_object((True, data, ""))
        parts = [everyone[member] for member in self._members]
        for member, (at_work, _, failure) in zip(self._members, parts, strict=True):
            if not at_work:
                raise CommError(f"split: rank {member} could not make its communicator: {failure}")
        return [data for _, data, _ in parts]

    def carried_by(self, communicator: Parent) -> None:
        """Talk over the new communicator from now on."""
        self._carrier = communicator


def split(parent: P, color: int | None, key: int, make: Callable[[World], P]) -> P | None:
    """Make this rank's communicator, and stay with the parent's rounds until every rank has its own."""
    table = parent.all_gather_object((color, key))
    made, failure = None, None
    if color is not None:
        members = sorted((r for r in range(parent.size) if table[r][0] == color), key=lambda r: (table[r][1], r))
        world = Subworld(parent, members)
        try:
            with limits_of(f"split on rank {parent.rank}"):
                made = make(world)
            world.carried_by(made)
        except Exception as error:
            failure = error
    try:
        done: _Part = (False, b"", str(failure or ""))
        while any(at_work for at_work, _, _ in parent.all_gather_object(done)):
            pass
    except BaseException:
        if made is not None:
            made.close()
        if failure is None:
            raise
    if failure is not None:
        raise failure
    return made
