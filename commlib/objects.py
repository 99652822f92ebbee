"""Objects between ranks: pickled, their lengths first."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from commlib.communicator import Communicator

T = TypeVar("T")


def all_gather(comm: Communicator, obj: T) -> list[T]:
    """Return every rank's object."""
    data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8).to(comm.device)
    lengths = torch.empty(comm.size, dtype=torch.int64, device=comm.device)
    with comm._inner():
        comm.all_gather_into_tensor(lengths, torch.tensor([len(data)], dtype=torch.int64, device=comm.device))
        sizes = lengths.tolist()
        everyone = torch.empty(sum(sizes), dtype=torch.uint8, device=comm.device)
        comm.all_gatherv(everyone, data, sizes)
    return [pickle.loads(part.numpy().tobytes()) for part in torch.split(everyone.cpu(), sizes)]


def broadcast(comm: Communicator, obj: T | None, src: int) -> T:
    """Return rank `src`'s object."""
    data = pickle.dumps(obj) if comm.rank == src else b""
    length = torch.tensor([len(data)], dtype=torch.int64, device=comm.device)
    with comm._inner():
        comm.broadcast(length, src)
        payload = torch.empty(int(length), dtype=torch.uint8, device=comm.device)
        if comm.rank == src:
            payload.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        comm.broadcast(payload, src)
    return pickle.loads(payload.cpu().numpy().tobytes())  # type: ignore[no-any-return]
