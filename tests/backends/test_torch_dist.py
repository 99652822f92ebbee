"""Which engine the torch backend takes, where no process group is given."""

from __future__ import annotations

import pytest
import torch

from commlib.backends import torch_dist
from commlib.bootstrap.world import World


class Pair(World):
    """Rank 0 of two; the other one says whether it has a GPU."""

    name, rank, size, local_rank = "pair", 0, 2, 0

    def __init__(self, peer_has: bool, device: str) -> None:
        self._peer, self.device = str(int(peer_has)).encode(), device

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        return [data, self._peer]


@pytest.mark.parametrize(
    ("gpus", "peer_has", "several", "device", "expected"),
    [
        (1, True, True, "", True),
        (1, False, True, "", False),
        (0, True, True, "", False),
        (1, True, False, "", False),  # asked for on one host, torch is gloo
        (1, True, True, "cpu", False),  # a part of ranks with tensors on CPUs, or a group made for them
        (1, True, False, "cuda", True),
    ],
)
def test_nccl_is_for_several_hosts_with_a_gpu_for_every_rank(monkeypatch, gpus, peer_has, several, device, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    assert torch_dist._on_gpus(Pair(peer_has, device), several, 1.0) is expected
