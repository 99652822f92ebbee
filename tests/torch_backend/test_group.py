"""init_process_group("commlib"): torch's calls give torch's results."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commlib.communicator import Communicator
from commlib.errors import CommTimeout
from commlib.testing import Ranks
from commlib.torch_backend import communicator
from tests.torch_backend.cases import CASES, ON_CPUS, run_case

SIZE = 3


@pytest.fixture(scope="module")
def live() -> Iterator[Ranks]:
    with Ranks(SIZE, backend="shm", timeout_s=60.0, deadline_s=120.0) as made:
        yield made


@pytest.fixture
def ranks(live: Ranks, tmp_path: Path) -> Ranks:
    """Live ranks whose default process group is commlib's; after a failure they are new ones."""
    live.run(start, str(tmp_path / "store"))
    return live


def start(comm: Communicator, path: str) -> None:
    if not dist.is_initialized():
        timeout, store = datetime.timedelta(seconds=60), dist.FileStore(path, comm.size)
        dist.init_process_group("commlib", store=store, rank=comm.rank, world_size=comm.size, timeout=timeout)


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
@pytest.mark.parametrize("name", [case.__name__ for case in (*CASES, *ON_CPUS)])
def test_the_result_is_torchs(ranks: Ranks, name: str) -> None:
    ranks.run(run_case, name)


def objects(comm: Communicator) -> None:
    everyone: list[Any] = [None] * SIZE
    dist.all_gather_object(everyone, {"rank": comm.rank})
    assert everyone == [{"rank": r} for r in range(SIZE)]
    given = [{"from": 1} if comm.rank == 1 else None]
    dist.broadcast_object_list(given, src=1)
    assert given == [{"from": 1}]


def test_objects_travel(ranks: Ranks) -> None:
    ranks.run(objects)


def refuses(comm: Communicator) -> list[str]:
    said = []
    for call in (
        lambda: dist.all_reduce(torch.ones(4, 4)[:, :2]),
        lambda: dist.all_reduce(torch.eye(3).to_sparse()),
        lambda: dist.all_reduce(torch.ones(2, device="meta")),
        lambda: dist.reduce(torch.ones(2), 0, dist._make_nccl_premul_sum(2.0)),
    ):
        with pytest.raises((ValueError, RuntimeError)) as refused:
            call()
        said.append(str(refused.value))
    x = torch.ones(2)
    dist.all_reduce(x)  # nothing is broken
    assert x[0] == SIZE
    return said


def test_what_cannot_be_served_is_refused_and_breaks_nothing(ranks: Ranks) -> None:
    strided, sparse, meta, premultiplied = ranks.run(refuses)[0]
    assert "strides (4, 1); pass x.contiguous()" in strided
    assert "moves dense tensors, not torch.sparse_coo; pass x.to_dense()" in sparse
    assert "serves tensors on cpu, cuda, not on meta" in meta
    assert "has no reduction RedOpType.PREMUL_SUM; use one of" in premultiplied


def the_communicator(comm: Communicator) -> tuple[str, int]:
    ours = communicator()
    return ours.backend, ours.size


def test_a_groups_communicator_can_be_had(ranks: Ranks) -> None:
    assert ranks.run(the_communicator) == [("shm", SIZE)] * SIZE


def a_late_rank(comm: Communicator) -> str:
    group: Any = dist.group.WORLD
    if comm.rank == 2:
        return ""
    with pytest.raises(CommTimeout) as late:
        group.monitored_barrier(datetime.timedelta(seconds=0.3))
    return str(late.value)


def test_a_monitored_barrier_names_who_is_missing(ranks: Ranks) -> None:
    said = ranks.run(a_late_rank)
    assert said[0] == "rank 0: monitored_barrier: rank 2 did not come within 0.3 s"
    assert said[1] in (
        said[0].replace("rank 0", "rank 1", 1),
        "rank 1: monitored_barrier: rank 0 did not come within 0.3 s",
    )
    ranks.run(all_come)


def all_come(comm: Communicator) -> None:
    group: Any = dist.group.WORLD
    if comm.rank == 2:
        group._barriers += 1  # the one it missed
    group.monitored_barrier(datetime.timedelta(seconds=20))
