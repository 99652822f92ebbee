"""Part: some ranks of a world, while they make something that the others do not need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from commlib.bootstrap.world import World
from commlib.errors import CommError

T = TypeVar("T")
AT_WORK, DONE = b"+", b"-"


class Part(World):
    """Its rounds are rounds of the whole world, in which the ranks of all parts take part."""

    name = "part"

    def __init__(self, whole: World, members: Sequence[int]) -> None:
        self._whole, self.names = whole, members
        self.rank, self.size = members.index(whole.rank), len(members)
        self.local_rank = whole.local_rank

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Return the members' bytes."""
        everyone = self._whole.all_gather(AT_WORK + data, timeout_s)
        for member in self.names:
            if everyone[member][:1] == DONE:
                raise CommError(everyone[member][1:].decode())
        return [everyone[member][1:] for member in self.names]

    def make(self, make: Callable[[], T], timeout_s: float) -> T:
        """Return what `make` returns on this rank, once every rank of the world has its own; all fail together."""
        made, failure = None, ""
        try:
            made = make()
        except CommError as error:
            failure = str(error)
        while True:
            everyone = self._whole.all_gather(DONE + failure.encode(), timeout_s)
            if all(said[:1] == DONE for said in everyone):
                break
        for said in everyone:
            if said[1:]:
                raise CommError(said[1:].decode())
        assert made is not None
        return made
