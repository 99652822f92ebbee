"""Calls of torch.distributed on every rank of the default group, each with what torch says it gives.

They make their tensors on torch's default device, so they serve CPUs and GPUs.
"""

from collections.abc import Callable
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commlib.communicator import Communicator
from commlib.errors import CommError


def start(
    comm: Communicator, path: str, backend: str = "commlib", timeout_s: float = 60.0, device: torch.device | None = None
) -> None:
    """Make the default process group, unless there is one."""
    if not dist.is_initialized():
        timeout, store = timedelta(seconds=timeout_s), dist.FileStore(path, comm.size)
        dist.init_process_group(
            backend, store=store, rank=comm.rank, world_size=comm.size, timeout=timeout, device_id=device
        )


def size() -> int:
    return dist.get_world_size()


def block(rank: int, *shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape) + 100 * rank


def reduced_by_every_kind(rank: int) -> Any:
    op = dist.ReduceOp
    kinds = {op.MIN: torch.amin, op.MAX: torch.amax, op.PRODUCT: torch.prod, op.AVG: torch.mean}
    found, wanted = [], []
    for kind, reference in kinds.items():
        x = block(rank, 4)
        dist.all_reduce(x, kind)
        found.append(x)
        wanted.append(reference(torch.stack([block(r, 4) for r in range(size())]), 0))
    return torch.stack(found), torch.stack(wanted)


def transposed(x: torch.Tensor) -> torch.Tensor:
    """Return the same elements in another order of memory."""
    return x.t().contiguous().t()


def moved_to_another_order_of_memory(rank: int) -> Any:
    """Each element comes to its index, wherever inputs and outputs have it in memory."""
    everyone, x = range(size()), block(rank, 2, 3)
    found, total = [], sum(block(r, 2, 3) for r in everyone)
    gathered, kept = torch.cat([block(r, 2, 3) for r in everyone]), [block(r, 2, 3) for r in everyone]
    for given, made in product((torch.clone, transposed), repeat=2):
        outs = [made(torch.empty(2, 3)) for _ in everyone]
        dist.all_gather(outs, given(x))
        swapped = [made(torch.empty(2, 3)) for _ in everyone]
        dist.all_to_all(swapped, [given(x) for _ in everyone])
        rows, swapped_rows = made(torch.empty(2 * size(), 3)), made(torch.empty(2 * size(), 3))
        dist.all_gather_into_tensor(rows, given(x))
        dist.all_to_all_single(swapped_rows, given(torch.cat([x] * size())))
        reduced, part, own = (made(torch.empty(2, 3)) for _ in range(3))
        dist.reduce_scatter(reduced, [given(x) for _ in everyone])
        dist.reduce_scatter_tensor(part, given(torch.cat([x] * size())))
        dist.scatter(own, [given(each) for each in kept] if rank == 1 else None, 1)
        rooted = [made(torch.empty(2, 3)) for _ in everyone] if rank == 0 else None
        dist.gather(given(x), rooted, 0)
        found += [*outs, *swapped, rows, swapped_rows, reduced, part, own, *(rooted or kept)]
    return torch.cat(found), torch.cat([*[gathered] * 4, total, total, kept[rank], gathered] * 4)


def changed_in_memory_with_gaps(rank: int) -> Any:
    xs = [torch.zeros(4, 6) for _ in range(6)]
    views = [x[::2, ::2] for x in xs]
    for view in views:
        view.copy_(block(rank, 2, 3))
    works = [dist.all_reduce(view, async_op=True) for view in views[:2]]
    dist.all_reduce(views[2])
    with dist._coalescing_manager():
        dist.all_reduce(views[3])
    dist.broadcast(views[4], 1)
    dist.reduce(views[5], 0)
    for work in works:
        work.wait()
    wanted = [torch.zeros(4, 6) for _ in xs]
    for at, x in enumerate(wanted):
        x[::2, ::2] = block(1, 2, 3) if at == 4 else sum(block(r, 2, 3) for r in range(size()))
    kept = 6 if rank == 0 else 5  # other ranks may have anything in what was reduced to the root
    return torch.stack(xs[:kept]), torch.stack(wanted[:kept])


def premultiplied(rank: int) -> Any:
    """FSDP's gradients are such sums where a program sets what divides them; the input stays as it is."""
    x, part, kept, op = block(rank, 4), torch.empty(4), block(rank, 4), dist._make_nccl_premul_sum(2.0 + rank)
    dist.all_reduce(x, op)
    dist.reduce_scatter(part, [kept] * size(), op)
    total = sum(block(r, 4) * (2.0 + r) for r in range(size()))
    return torch.stack([x, part, kept]), torch.stack([total, total, block(rank, 4)])


def scattered_and_reduced_from_a_list_of_different_sizes(rank: int) -> Any:
    out = torch.empty(rank + 1)
    dist.reduce_scatter(out, [block(rank, r + 1) for r in range(size())])
    return out, sum(block(r, rank + 1) for r in range(size()))


def exchanged_by_splits(rank: int) -> Any:
    rows = torch.empty(sum(rank + r for r in range(size())), 2)
    splits = [rank + r for r in range(size())]
    dist.all_to_all_single(rows, block(rank, sum(splits), 2), splits, splits)
    mine = [block(r, sum(r + s for s in range(size())), 2) for r in range(size())]
    starts = [sum(r + s for s in range(rank)) for r in range(size())]
    parts = [mine[r][starts[r] : starts[r] + rank + r] for r in range(size())]
    return rows, torch.cat(parts)


def asynchronous(rank: int) -> Any:
    xs = [block(rank, 5) for _ in range(4)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    late = works[0].get_future().then(lambda done: done.value()[0] * 2)
    for work in works:
        assert work.wait()
        assert work.is_completed()
    return torch.stack([*xs, late.wait()]), torch.stack(
        [sum(block(r, 5) for r in range(size())) * k for k in (1, 1, 1, 1, 2)]
    )


def called_back(rank: int) -> Any:
    """What follows a call may make others and wait for them, as DDP's hook PowerSGD does."""
    x, again, message = block(rank, 5), torch.ones(5), torch.empty(2)

    def follow(done: Any) -> torch.Tensor:
        works = [dist.all_reduce(again, async_op=True), dist.isend(block(rank, 2), (rank + 1) % size())]
        works.append(dist.irecv(message, (rank - 1) % size()))
        for work in works:
            work.wait()
        total: torch.Tensor = done.value()[0] * again
        dist.all_reduce(total)
        return total

    first = dist.all_reduce(x, async_op=True).get_future().then(follow)
    total = sum(block(r, 5) for r in range(size()))
    return torch.cat([first.wait(), message]), torch.cat([total * size() ** 2, block((rank - 1) % size(), 2)])


def coalesced(rank: int) -> Any:
    xs = [block(rank, 3), block(rank, 5)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    with dist._coalescing_manager(async_ops=True) as manager:
        outs = [torch.empty(size() * 2) for _ in range(2)]
        for out in outs:
            dist.all_gather_into_tensor(out, block(rank, 2))
    manager.wait()
    total, gathered = sum(block(r, 5) for r in range(size())), torch.cat([block(r, 2) for r in range(size())])
    return torch.cat([*xs, *outs]), torch.cat([total[:3], total, gathered, gathered])


def messages_from_any_rank(rank: int) -> Any:
    if rank:
        dist.send(block(rank, 3), 0)
        return torch.zeros(1), torch.zeros(1)
    found = {}
    for _ in range(size() - 1):
        x = torch.empty(3)
        found[dist.recv(x)] = x
    return torch.stack([found[1], found[2]]), torch.stack([block(1, 3), block(2, 3)])


def received_from_any_rank_behind_a_large_one(rank: int) -> Any:
    x, large = block(1, 1) if rank else torch.empty(1), torch.empty(4 << 20)
    if rank == 1:
        work = dist.isend(x, 0)
        dist.recv(large, 0)
        work.wait()
    if rank == 0:
        dist.send(large, 1)  # meanwhile it takes in what others sent
        assert dist.recv(x) == 1
    return x, block(1, 1)


def kept_for_a_receive_that_fits(rank: int) -> Any:
    """A message that does not fit is refused, and stays in its place."""
    peer, other = (rank + 1) % size(), (rank - 1) % size()
    works = [dist.isend(x, peer) for x in (block(rank, 4), torch.arange(3), block(rank, 2))]
    for wrong in (torch.empty(5), torch.empty(4, dtype=torch.int32)):
        with pytest.raises(ValueError, match=rf"recv expects {len(wrong)} elements of .*, but rank {other} sent 4 of"):
            dist.recv(wrong, other)
    found = [torch.empty(4), torch.empty(3, dtype=torch.int64), torch.empty(2)]
    for x, work in zip(found, works, strict=True):
        dist.recv(x, other)
        work.wait()
    return torch.cat(found), torch.cat([block(other, 4), torch.arange(3), block(other, 2)])


def waited_for_without_a_thread(rank: int) -> Any:
    """dist.send and dist.recv wait: no other thread makes their calls."""
    group: Any = dist.new_group()
    x = block(rank, 2)
    if rank == 0:
        dist.send(x, 1, group=group)
        assert dist.recv(x, group=group) == 1
    if rank == 1:
        dist.recv(x, 0, group=group)
        dist.send(x, 0, group=group)
    assert not group.communicator(torch.device("cpu")).dispatcher.executor.used
    dist.destroy_process_group(group)
    return x, block(0 if rank == 1 else rank, 2)


def ended_while_calls_are_under_way(rank: int) -> Any:
    """Each rank is told who ended the group, that one too."""
    group: Any = dist.new_group()
    work = dist.all_reduce(torch.ones(2), group=group, async_op=True) if rank == 0 else None
    if rank == 0:
        group.abort()
    with pytest.raises(CommError, match="rank 0 aborted its process group"):
        dist.all_reduce(torch.ones(2), group=group) if work is None else work.wait()
    dist.destroy_process_group(group)
    return torch.zeros(1), torch.zeros(1)


def received_in_another_order_of_memory(rank: int) -> Any:
    peer, other = (rank + 1) % size(), (rank - 1) % size()
    works = [dist.isend(transposed(block(rank, 2, 3)) + at, peer, tag=tag) for at, tag in enumerate((1, 1, 2))]
    plain, second, across = torch.empty(2, 3), torch.empty(2, 3), transposed(torch.empty(2, 3))
    for out, tag in ((across, 2), (plain, 1), (second, 1)):
        dist.recv(out, other, tag=tag)
    for work in works:
        work.wait()
    return torch.stack([plain, second, across]), torch.stack([block(other, 2, 3) + at for at in range(3)])


def moved_in_inference_mode(rank: int) -> Any:
    """A call that runs later, in another thread, may write to tensors of this one's mode."""
    peer, other = (rank + 1) % size(), (rank - 1) % size()
    with torch.inference_mode():
        outs, kept, x = [torch.empty(2, r) for r in range(size())], torch.empty(2), block(rank, 2)
        works = [dist.all_gather(outs, block(rank, 2, rank), async_op=True)]
        works += [dist.isend(x, peer, tag=1), dist.isend(x + 1, peer, tag=2)]
        dist.irecv(torch.empty(2), other, tag=2).wait()
        works.append(dist.irecv(kept, other, tag=1))
        for work in works:
            work.wait()
    wanted = [*(block(r, 2, r).view(-1) for r in range(size())), block(other, 2)]
    return torch.cat([*(out.reshape(-1) for out in outs), kept]).clone(), torch.cat(wanted)


def moved_into_parameters(rank: int) -> Any:
    """A call writes to a leaf that requires grad as to any tensor."""
    outs = [torch.nn.Parameter(torch.empty(r)) for r in range(size())]
    dist.all_gather(outs, torch.nn.Parameter(block(rank, rank)))
    return torch.cat(outs).detach(), torch.cat([block(r, r) for r in range(size())])


def without_options(rank: int) -> Any:
    """As programs call a process group itself: op, root and single tensors in place of an options object."""
    group: Any = dist.group.WORLD
    x, y, z, last = block(rank, 3), block(rank, 3), block(rank, 3), size() - 1
    works = [group.allreduce(x, dist.ReduceOp.MAX), group.allreduce([y]), group.broadcast(z, root=last)]
    outs = [torch.empty(2) for _ in range(size())]
    works.append(group.allgather(outs, block(rank, 2)))
    part, kept = torch.empty(2), torch.empty(2)
    works.append(group.reduce_scatter(part, [block(rank, 2) for _ in range(size())]))
    works.append(group.scatter(kept, [block(r, 2) for r in range(size())] if rank == 0 else [], 0))
    for work in works:
        work.wait()
    group.barrier().wait()
    found = torch.cat([x, y, z, *outs, part, kept])
    total = sum(block(r, 3) for r in range(size()))
    wanted = [block(last, 3), total, block(last, 3), *(block(r, 2) for r in range(size())), total[:2], block(rank, 2)]
    return found, torch.cat(wanted)


def gathered_into_one_tensor_of_the_root(rank: int) -> Any:
    """As dist.gather_single of torch 2.14 calls a group."""
    group, opts, found, wanted = dist.group.WORLD, dist.GatherOptions(), torch.empty(0), torch.empty(0)
    opts.rootRank = 1
    if rank == 1:
        found, wanted = torch.empty(size(), 4), torch.stack([block(r, 4) for r in range(size())])
    group.gather_single(found, block(rank, 4), opts).wait()
    return found, wanted


def functional(rank: int) -> Any:
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    x = functional.all_reduce(block(rank, size() * 2), "sum", group)
    y = functional.all_gather_tensor(block(rank, 2), 0, group)
    z = functional.reduce_scatter_tensor(block(rank, size() * 2), "sum", 0, group)
    told, swapped = functional.broadcast(block(rank, 2), 1, group), block(rank, 2).repeat(size())
    swapped = functional.all_to_all_single(swapped, None, None, group)
    total, gathered = sum(block(r, size() * 2) for r in range(size())), [block(r, 2) for r in range(size())]
    wanted = [total, *gathered, total[2 * rank : 2 * rank + 2], block(1, 2), *gathered]
    return torch.cat([x, y, z, told, swapped]), torch.cat(wanted)


CASES: tuple[Callable[[int], Any], ...] = (
    *(reduced_by_every_kind, premultiplied, exchanged_by_splits, asynchronous, coalesced),
    *(moved_to_another_order_of_memory, moved_into_parameters, changed_in_memory_with_gaps),
    *(scattered_and_reduced_from_a_list_of_different_sizes, without_options, functional),
    gathered_into_one_tensor_of_the_root,
)
# What GPUs cannot do, nor NCCL's group: tags, any source, and waits of the host.
ON_CPUS: tuple[Callable[[int], Any], ...] = (
    *(messages_from_any_rank, received_from_any_rank_behind_a_large_one, called_back),
    *(received_in_another_order_of_memory, moved_in_inference_mode),
    *(kept_for_a_receive_that_fits, waited_for_without_a_thread, ended_while_calls_are_under_way),
)


def run_case(comm: Communicator, name: str) -> None:
    found, wanted = globals()[name](comm.rank)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
