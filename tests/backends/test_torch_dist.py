"""Which backend "auto" takes, and which engine the torch backend, by what the ranks say of their GPUs."""

import json
from unittest import mock

import pytest
import torch

from commlib import backends
from commlib.backends import torch_dist
from commlib.backends.base import Options
from commlib.backends.shm import ShmBackend
from commlib.bootstrap.world import SingleWorld, process_info
from commlib.communicator import Communicator
from tests.on_ranks import on_ranks


def lonely(value: int) -> torch.Tensor:
    return torch.full((4,), float(value))[::2][:1]


@on_ranks(2, "torch_ranks")
def test_one_element_may_have_any_stride(comm: Communicator) -> None:
    other, every = 1 - comm.rank, torch.arange(2.0)
    gathered, collected, exchanged = torch.zeros(3, 2)
    received, told, handed = lonely(9), lonely(comm.rank), lonely(9)
    comm.all_gather_into_tensor(gathered, lonely(comm.rank))
    comm.gather(lonely(comm.rank), 0, out=collected)
    comm.all_to_all_single(exchanged, every)
    comm.send_recv(lonely(comm.rank), other, out=received, src=other)
    comm.broadcast(told, 1)
    comm.scatter(every, 0, out=handed)
    found = [x.tolist() for x in (gathered, exchanged, received, told, handed)]
    assert found == [[0, 1], [comm.rank] * 2, [other], [1], [comm.rank]]
    assert comm.rank == 1 or collected.tolist() == [0, 1]


class Said(SingleWorld):
    """A world whose other rank has said what it sees."""

    size = 2

    def __init__(self, rank: int, other: object) -> None:
        self.rank = self.local_rank = rank
        self._other = json.dumps(other).encode()

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        return [data, self._other] if self.rank == 0 else [self._other, data]


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
    world = Said(0, peer_has)
    world.device, world.infos = device, [process_info()._replace(boot=str(several and rank)) for rank in range(2)]
    assert torch_dist._on_gpus(world, 1.0) is expected


def test_gloo_takes_the_interfaces_that_its_variable_names(monkeypatch):
    gloo = mock.Mock()
    monkeypatch.setattr(torch_dist.dist, "ProcessGroupGloo", gloo)
    for names, wanted in (("lo,eth0", [mock.call(interface="lo"), mock.call(interface="eth0")]), ("", [mock.ANY])):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", names)
        gloo.create_device.reset_mock()
        torch_dist.TorchBackend._gloo(mock.Mock(), "10.0.0.1")
        assert gloo.create_device.call_args_list == wanted
    assert gloo.create_device.call_args == mock.call(hostname="10.0.0.1")


OPTIONS = Options(timeout_s=1.0, max_bytes=0, checked=False)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("gpus", "visible", "other", "wanted"),
    [
        (1, "0", ["", "GPU 1"], ("nccl", "every rank has a GPU of its own")),
        (1, "0", ["", "GPU 0"], ("shm", "ranks 0 and 1 see one GPU between them")),
        (2, "", ["", ""], ("nccl", "every rank has a GPU of its own")),
        (2, "", ["rank x has no nccl4py", ""], ("shm", "rank x has no nccl4py")),
        (0, "", ["", ""], ("shm", "rank {} has no GPU of its own")),
    ],
)
def test_auto_takes_gpus_where_each_rank_has_its_own(monkeypatch, rank, gpus, visible, other, wanted):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(backends, "find_spec", lambda name: name)
    assert backends._best(Said(rank, other), OPTIONS) == (wanted[0], wanted[1].format(rank))


def test_the_mark_of_inner_calls_ends_with_the_outermost_block_also_after_an_error():
    backend = ShmBackend.__new__(ShmBackend)
    backend._group = group = mock.Mock()
    for _ in range(2):
        with pytest.raises(KeyError), backend.inner():
            with backend.inner():
                pass
            raise KeyError
    assert [call.args[0] for call in group.set_inner.call_args_list] == [True, True, True, False] * 2
    with backend.inner():
        backend.close()  # as a hook may
