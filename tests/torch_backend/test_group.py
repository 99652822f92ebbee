"""init_process_group("commlib"): torch's calls give torch's results."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commlib.communicator import Communicator
from commlib.errors import CommTimeout
from commlib.testing import Ranks
from commlib.torch_backend import communicator

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


def block(rank: int, *shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape) + 100 * rank


def all_reduced(rank: int) -> Any:
    x = block(rank, 2, 3)
    dist.all_reduce(x)
    return x, sum(block(r, 2, 3) for r in range(SIZE))


def reduced_by_every_kind(rank: int) -> Any:
    kinds = {dist.ReduceOp.MIN: torch.amin, dist.ReduceOp.MAX: torch.amax, dist.ReduceOp.PRODUCT: torch.prod}
    found, wanted = [], []
    for kind, reference in kinds.items():
        x = block(rank, 4)
        dist.all_reduce(x, kind)
        found.append(x)
        wanted.append(reference(torch.stack([block(r, 4) for r in range(SIZE)]), 0))
    return torch.stack(found), torch.stack(wanted)


def reduced_in_another_order_of_memory(rank: int) -> Any:
    x = block(rank, 2, 3, 4).permute(2, 0, 1)
    dist.all_reduce(x)
    return x, sum(block(r, 2, 3, 4).permute(2, 0, 1) for r in range(SIZE))


def premultiplied(rank: int) -> Any:
    x = block(rank, 4)
    dist.all_reduce(x, dist._make_nccl_premul_sum(2.0 + rank))
    return x, sum(block(r, 4) * (2.0 + r) for r in range(SIZE))


def gathered_into_a_list_of_different_sizes(rank: int) -> Any:
    outs = [torch.empty(r + 1) for r in range(SIZE)]
    dist.all_gather(outs, block(rank, rank + 1))
    return torch.cat(outs), torch.cat([block(r, r + 1) for r in range(SIZE)])


def gathered_into_one_tensor(rank: int) -> Any:
    out = torch.empty(SIZE, 2, 2)
    dist.all_gather_into_tensor(out, block(rank, 2, 2))
    return out, torch.stack([block(r, 2, 2) for r in range(SIZE)])


def scattered_and_reduced(rank: int) -> Any:
    out = torch.empty(2)
    dist.reduce_scatter_tensor(out, block(rank, SIZE * 2))
    return out, sum(block(r, SIZE * 2) for r in range(SIZE))[2 * rank : 2 * rank + 2]


def scattered_and_reduced_from_a_list_of_different_sizes(rank: int) -> Any:
    out = torch.empty(rank + 1)
    dist.reduce_scatter(out, [block(rank, r + 1) for r in range(SIZE)])
    return out, sum(block(r, rank + 1) for r in range(SIZE))


def rooted(rank: int) -> Any:
    x, y, z = block(rank, 2), block(rank, 2), torch.empty(2)
    dist.broadcast(x, 1)
    dist.reduce(y, 2)
    dist.scatter(z, [block(r, 2) for r in range(SIZE)] if rank == 1 else None, 1)
    outs = [torch.empty(2) for _ in range(SIZE)] if rank == 0 else None
    dist.gather(block(rank, 2), outs, 0)
    wanted = [block(1, 2), sum(block(r, 2) for r in range(SIZE)) if rank == 2 else y, block(rank, 2)]
    found = [x, y, z]
    if outs is not None:
        found, wanted = [*found, *outs], [*wanted, *(block(r, 2) for r in range(SIZE))]
    return torch.stack(found), torch.stack(wanted)


def exchanged(rank: int) -> Any:
    outs, given = [torch.empty(rank + r) for r in range(SIZE)], [block(rank, rank + r) for r in range(SIZE)]
    dist.all_to_all(outs, given)
    rows = torch.empty(sum(rank + r for r in range(SIZE)), 2)
    splits = [rank + r for r in range(SIZE)]
    dist.all_to_all_single(rows, block(rank, sum(splits), 2), splits, splits)
    mine = [block(r, sum(r + s for s in range(SIZE)), 2) for r in range(SIZE)]
    starts = [sum(r + s for s in range(rank)) for r in range(SIZE)]
    parts = [mine[r][starts[r] : starts[r] + rank + r] for r in range(SIZE)]
    return torch.cat([*outs, rows.view(-1)]), torch.cat(
        [*(block(r, rank + r) for r in range(SIZE)), *(p.reshape(-1) for p in parts)]
    )


def asynchronous(rank: int) -> Any:
    xs = [block(rank, 5) for _ in range(4)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    late = works[0].get_future().then(lambda done: done.value()[0] * 2)
    for work in works:
        assert work.wait()
        assert work.is_completed()
    return torch.stack([*xs, late.wait()]), torch.stack(
        [sum(block(r, 5) for r in range(SIZE)) * k for k in (1, 1, 1, 1, 2)]
    )


def coalesced(rank: int) -> Any:
    xs = [block(rank, 3), block(rank, 5)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    with dist._coalescing_manager(async_ops=True) as manager:
        outs = [torch.empty(SIZE * 2) for _ in range(2)]
        for out in outs:
            dist.all_gather_into_tensor(out, block(rank, 2))
    manager.wait()
    total, gathered = sum(block(r, 5) for r in range(SIZE)), torch.cat([block(r, 2) for r in range(SIZE)])
    return torch.cat([*xs, *outs]), torch.cat([total[:3], total, gathered, gathered])


def messages_with_tags(rank: int) -> Any:
    peer, other = (rank + 1) % SIZE, (rank - 1) % SIZE
    sent = [dist.isend(block(rank, 4) + tag, peer, tag=tag) for tag in (1, 2)]
    found = [torch.empty(4), torch.empty(4)]
    for tag in (2, 1):  # not in the order they were sent in
        dist.recv(found[tag - 1], other, tag=tag)
    for work in sent:
        work.wait()
    return torch.stack(found), torch.stack([block(other, 4) + 1, block(other, 4) + 2])


def messages_from_any_rank(rank: int) -> Any:
    if rank:
        dist.send(block(rank, 3), 0)
        return torch.zeros(1), torch.zeros(1)
    found = {}
    for _ in range(SIZE - 1):
        x = torch.empty(3)
        found[dist.recv(x)] = x
    return torch.stack([found[1], found[2]]), torch.stack([block(1, 3), block(2, 3)])


def batched_messages(rank: int) -> Any:
    outs = [torch.empty(6) for _ in range(SIZE)]
    others = [r for r in range(SIZE) if r != rank]
    ops = [dist.P2POp(dist.isend, block(rank, 6), r) for r in others] + [
        dist.P2POp(dist.irecv, outs[r], r) for r in others
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return torch.stack([outs[r] for r in others]), torch.stack([block(r, 6) for r in others])


def of_a_new_group(rank: int) -> Any:
    group = dist.new_group([0, 2])
    x = block(rank, 4)
    if rank != 1:
        dist.all_reduce(x, group=group)
        assert dist.get_backend(group) == "commlib"
        dist.destroy_process_group(group)
    return x, block(1, 4) if rank == 1 else block(0, 4) + block(2, 4)


def functional(rank: int) -> Any:
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    x = functional.all_reduce(block(rank, 6), "sum", group)
    y = functional.all_gather_tensor(block(rank, 2), 0, group)
    z = functional.reduce_scatter_tensor(block(rank, SIZE * 2), "sum", 0, group)
    total = sum(block(r, 6) for r in range(SIZE))
    return torch.cat([x, y, z]), torch.cat([total, *(block(r, 2) for r in range(SIZE)), total[2 * rank : 2 * rank + 2]])


CASES: tuple[Callable[[int], Any], ...] = (
    *(all_reduced, reduced_by_every_kind, reduced_in_another_order_of_memory, premultiplied, rooted, exchanged),
    *(gathered_into_a_list_of_different_sizes, gathered_into_one_tensor, scattered_and_reduced),
    *(scattered_and_reduced_from_a_list_of_different_sizes, asynchronous, coalesced, messages_with_tags),
    *(messages_from_any_rank, batched_messages, of_a_new_group, functional),
)


def run_case(comm: Communicator, name: str) -> None:
    found, wanted = globals()[name](comm.rank)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
@pytest.mark.parametrize("name", [case.__name__ for case in CASES])
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
