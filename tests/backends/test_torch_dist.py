"""Which engine the torch backend takes, where no process group is given."""

import json
from unittest import mock

import pytest
import torch

from commlib.backends import torch_dist
from commlib.bootstrap.world import World, process_info
from commlib.communicator import Communicator
from commlib.tools.testing import Ranks


def lonely(value: int) -> torch.Tensor:
    return torch.full((4,), float(value))[::2][:1]


def of_one_element(comm: Communicator) -> list[list[float]]:
    other, every = 1 - comm.rank, torch.arange(2.0)
    gathered, collected, exchanged = torch.zeros(3, 2)
    received, told, handed = lonely(9), lonely(comm.rank), lonely(9)
    comm.all_gather_into_tensor(gathered, lonely(comm.rank))
    comm.gather(lonely(comm.rank), 0, out=collected)
    comm.all_to_all_single(exchanged, every)
    comm.send_recv(lonely(comm.rank), other, out=received, src=other)
    comm.broadcast(told, 1)
    comm.scatter(every, 0, out=handed)
    return [x.tolist() for x in (gathered, collected, exchanged, received, told, handed)]


def test_one_element_may_have_any_stride(torch_ranks: Ranks) -> None:
    first, second = torch_ranks.run(of_one_element, world=2)
    assert first == [[0, 1], [0, 1], [0, 0], [1], [1], [0]]
    assert second[2:] == [[1, 1], [0], [1], [1]]


class Pair(World):
    """Rank 0 of two; the other one says whether it has a GPU."""

    name, rank, size, local_rank = "pair", 0, 2, 0

    def __init__(self, peer_has: bool, several: bool, device: str) -> None:
        self._peer, self.device = json.dumps(peer_has).encode(), device
        self.infos = [process_info()._replace(boot=str(several and rank)) for rank in range(2)]

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
    assert torch_dist._on_gpus(Pair(peer_has, several, device), 1.0) is expected


def test_gloo_takes_the_interfaces_that_its_variable_names(monkeypatch):
    gloo = mock.Mock()
    monkeypatch.setattr(torch_dist.dist, "ProcessGroupGloo", gloo)
    for names, wanted in (("lo,eth0", [mock.call(interface="lo"), mock.call(interface="eth0")]), ("", [mock.ANY])):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", names)
        gloo.create_device.reset_mock()
        torch_dist.TorchBackend._gloo(mock.Mock(), "10.0.0.1")
        assert gloo.create_device.call_args_list == wanted
    assert gloo.create_device.call_args == mock.call(hostname="10.0.0.1")
