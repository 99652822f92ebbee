"""Subworld: the world of a split communicator, which talks over collectives once it has them."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import torch

from commlib.bootstrap.world import World

if TYPE_CHECKING:
    from commlib.communicator import Communicator


class Subworld(World):
    """Some ranks of a parent communicator.

    While the new communicator is being made, its members exchange messages of the parent, so the parent's other
    ranks need not take part; afterwards they use the new communicator's own collectives.
    """

    name = "split"

    def __init__(self, parent: Communicator, members: list[int]) -> None:
        self._carrier = parent
        self._members: list[int] | None = members
        self.rank = members.index(parent.rank)
        self.size = len(members)
        self.local_rank = parent.local_rank

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Exchange among the members; the carrier's own deadline holds."""
        if self._members is None:
            return self._carrier.all_gather_object(data)
        leader, *others = self._members
        if self.rank != 0:
            self._send(data, leader)
            return [bytes(part) for part in pickle.loads(self._receive(leader))]
        everyone = [data, *(self._receive(member) for member in others)]
        for member in others:
            self._send(pickle.dumps(everyone), member)
        return everyone

    def _send(self, data: bytes, to: int) -> None:
        device = self._carrier.device
        self._carrier.send(torch.tensor([len(data)], device=device), to)
        if data:
            self._carrier.send(torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device), to)

    def _receive(self, source: int) -> bytes:
        device = self._carrier.device
        length = torch.zeros(1, dtype=torch.int64, device=device)
        self._carrier.recv(length, source)
        payload = torch.empty(int(length), dtype=torch.uint8, device=device)
        if payload.numel():
            self._carrier.recv(payload, source)
        return payload.cpu().numpy().tobytes()

    def carried_by(self, communicator: Communicator) -> None:
        """Talk over the new communicator from now on."""
        self._carrier, self._members = communicator, None
