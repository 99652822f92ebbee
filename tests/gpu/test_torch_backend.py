"""The torch backend over NCCL: the conformance suite on tensors of GPUs."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commlib.bootstrap import connect
from commlib.collectives import COLLECTIVES
from commlib.communicator import Communicator, create
from commlib.tools.testing import Ranks
from commlib.tools.testing.conformance import EVERY_SIZE, Scope, check_algorithm
from tests import hosts
from tests.gpu.conftest import GPUS
from tests.on_ranks import on_ranks
from tests.programs.launched import free_port


def over_nccl(world: Any, **options: Any) -> Communicator:
    """Make an NCCL process group as a torch program would, and a communicator on it."""
    torch.cuda.set_device(world.rank)
    port = world.exchange(str(free_port()), 30.0)[0]
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", port
    dist.init_process_group("nccl", rank=world.rank, world_size=world.size)
    return create(connect(dist.group.WORLD, timeout_s=60.0), timeout_s=60.0, backend="torch")


@pytest.fixture(scope="module")
def gpu_ranks() -> Iterator[Ranks]:
    with Ranks(min(GPUS, 4), create=over_nccl, deadline_s=120.0) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def ranks_apart() -> Iterator[Ranks]:
    world = min(GPUS, 4)
    with Ranks(world, create=hosts.create, hosts="abcd"[:world], timeout_s=60.0, deadline_s=120.0) as ranks:
        yield ranks


@pytest.mark.parametrize("ranks", ["gpu_ranks", "ranks_apart"])
@pytest.mark.parametrize("name", [name for name, each in COLLECTIVES.items() if "torch_direct" in each.rows("torch")])
def test_torch_direct_over_nccl_gives_the_reference(request: pytest.FixtureRequest, name: str, ranks: str) -> None:
    few = Scope((0, 1, 33), (torch.float32, torch.bfloat16, torch.int32, torch.uint8), ("sum", "max", "avg"))
    for scope in (few, EVERY_SIZE):
        verdicts = request.getfixturevalue(ranks).run(check_algorithm, name, "torch_direct", scope)
        assert [v.wrong for v in verdicts if v.wrong] == []


@on_ranks(fixture="ranks_apart")
def test_nccl_serves_hosts_with_gpus(comm: Communicator) -> None:
    part = comm.split(comm.rank)
    assert part is not None
    part.barrier()
    assert (part.device.type, comm.empty(4).device.type) == ("cuda", "cuda")
    part.close()
    assert comm.backend == "torch"
    assert "runs torch_direct" in str(comm.explain("all_reduce", 8))
