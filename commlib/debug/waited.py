"""How long this process itself has waited for each peer of a communicator, as its record has it."""

from __future__ import annotations

import mmap
import os
import struct

from commlib.debug.record import records_of


class Waited:
    """Reads it straight from memory; of a communicator without a record there is nothing to read."""

    def __init__(self, communicator: int) -> None:
        self._places: list[int] = []
        for record in records_of(os.getpid()) if communicator else ():
            self._memory = mmap.mmap(record.fd, 0, prot=mmap.PROT_READ)
            kind = record.layout("Slot")
            start, peer, _ = kind.part("peers")
            for at in record.slot_places():
                slot = kind.read(self._memory, at)
                if slot["id"] == communicator and slot["state"] == 1:
                    places = range(at + start, at + start + slot["world"] * peer.size, peer.size)
                    self._places = [place + peer.place("waited_ns") for place in places]
            record.close()

    def by_rank(self) -> list[int]:
        """Return the nanoseconds so far."""
        return [struct.unpack_from("=Q", self._memory, at)[0] for at in self._places]
