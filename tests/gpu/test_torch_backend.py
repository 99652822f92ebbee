"""The torch backend over NCCL: the conformance suite on tensors of GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from commlib import env
from commlib.collectives import COLLECTIVES
from commlib.communicator import Communicator
from commlib.testing import Ranks
from commlib.testing.conformance import EVERY_SIZE, Scope, check_algorithm

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(GPUS < 2, reason=f"needs two GPUs, found {GPUS}"),
]


def over_nccl(world: Any, **options: Any) -> Communicator:
    """Make an NCCL process group as a torch program would, and a communicator on it."""
    import torch.distributed as dist

    from commlib.bootstrap import connect

    torch.cuda.set_device(world.rank)
    port = world.broadcast(str(_free_port()).encode(), 0, 30.0).decode()
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", port
    dist.init_process_group("nccl", rank=world.rank, world_size=world.size)
    return Communicator._create(connect(dist.group.WORLD, timeout_s=60.0), timeout_s=60.0, backend="torch")


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def gpu_ranks() -> Iterator[Ranks]:
    with Ranks(min(GPUS, 4), create=over_nccl, deadline_s=120.0) as ranks:
        yield ranks


@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_torch_direct_over_nccl_gives_the_reference(gpu_ranks: Ranks, name: str) -> None:
    few = Scope((0, 1, 33), (torch.float32, torch.bfloat16, torch.int32, torch.uint8), ("sum", "max", "avg"))
    for scope in (few, EVERY_SIZE):
        verdicts = gpu_ranks.run(check_algorithm, name, "torch_direct", scope)
        assert [v.wrong for v in verdicts if v.wrong] == []


def device_of(comm: Communicator) -> tuple[str, str]:
    return comm.backend, comm.empty(4).device.type


def test_the_device_is_the_groups(gpu_ranks: Ranks) -> None:
    assert set(gpu_ranks.run(device_of)) == {("torch", "cuda")}


def on_hosts_of_their_own(world: Any, **options: Any) -> Communicator:
    """Make a communicator of ranks that count as on several hosts."""
    os.environ[env.HOST.name] = f"host{world.rank}"
    return Communicator._create(world, timeout_s=60.0)


@pytest.fixture(scope="module")
def ranks_apart() -> Iterator[Ranks]:
    with Ranks(min(GPUS, 4), create=on_hosts_of_their_own, deadline_s=120.0) as ranks:
        yield ranks


@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_hosts_with_gpus_use_nccl_for_everything(ranks_apart: Ranks, name: str) -> None:
    scope = Scope((0, 1, 33, 70_001), (torch.float32, torch.bfloat16), ("sum", "max"))
    verdicts = ranks_apart.run(check_algorithm, name, "torch_direct", scope)
    assert [v.wrong for v in verdicts if v.wrong] == []


def explained_and_split(comm: Communicator) -> tuple[str, str, str]:
    part = comm.split(comm.rank)
    assert part is not None
    part.barrier()
    kind = part.device.type
    part.close()
    return comm.backend, str(comm.explain("all_reduce", 8)), kind


def test_explain_says_that_nccl_serves_hosts_with_gpus(ranks_apart: Ranks) -> None:
    for backend, why, kind in ranks_apart.run(explained_and_split):
        assert (backend, kind) == ("torch", "cuda")
        assert "passed over hier_oneshot: on GPUs NCCL's own group serves all calls" in why
        assert "runs torch_direct" in why
