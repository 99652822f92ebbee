"""init_process_group("commlib") on GPUs: torch's results and rules of streams, graphs, batches, other backends."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commlib.communicator import Communicator
from commlib.tools.testing import Ranks
from commlib.torch_backend import communicator
from tests.gpu.conftest import GPUS
from tests.on_ranks import on_ranks
from tests.torch_backend.cases import CASES, run_case
from tests.torch_backend.cases import start as start_group
from tests.torch_backend.mixtures import mix

LARGE = 8 << 20  # elements: NCCL holds up a send of so many until they are received
SLEEP_CYCLES = 200_000_000


@pytest.fixture(scope="module")
def live() -> Iterator[Ranks]:
    with Ranks(min(GPUS, 4), backend="shm", timeout_s=60.0, deadline_s=120.0) as made:
        yield made


@pytest.fixture
def ranks(live: Ranks, tmp_path: Path) -> Ranks:
    live.run(start, str(tmp_path / "store"), "commlib", False)
    return live


def start(comm: Communicator, path: str, backend: str, bound: bool) -> None:
    if dist.is_initialized():
        return
    torch.cuda.set_device(comm.rank)
    torch.set_default_device("cuda")
    start_group(comm, path, backend, device=torch.device("cuda", comm.rank) if bound else None)


def end(comm: Communicator) -> None:
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
@pytest.mark.parametrize("name", [case.__name__ for case in CASES])
def test_the_result_is_torchs(ranks: Ranks, name: str) -> None:
    ranks.run(run_case, name)


@on_ranks(fixture="ranks")
def test_gpus_are_served_by_our_kernels(comm: Communicator) -> bool:
    return communicator(device="cuda").backend == "nccl"


def both_ways_at_once(comm: Communicator) -> None:
    peer = 1 - comm.rank if comm.rank < 2 else comm.rank
    if peer == comm.rank:
        return
    x, y = torch.full((LARGE,), float(comm.rank)), torch.empty(LARGE)
    ops = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, peer)]
    works = dist.batch_isend_irecv(ops)
    assert len(works) == 2
    for work in works:
        work.wait()
    assert bool((y == peer).all())


@on_ranks(fixture="ranks")
def test_a_batch_that_was_refused_holds_up_no_large_messages_both_ways(comm: Communicator) -> None:
    if comm.rank > 1:
        return
    peer = 1 - comm.rank
    bad = dist.P2POp(dist.irecv, torch.empty(8), peer)
    bad.tensor = torch.empty(8, 8)[:, :2]
    with pytest.raises(ValueError, match="contiguous"):
        dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(8), peer), bad])
    both_ways_at_once(comm)


@pytest.mark.parametrize("count", [64, 1 << 20, 1 << 22])  # the last on a stream of its own
@on_ranks(fixture="ranks")
def test_wait_orders_the_streams(comm: Communicator, count: int) -> None:
    """The caller's stream goes on before the call; wait() orders it behind."""
    side = torch.cuda.Stream()
    for step in range(20):
        x = torch.full((count,), float(comm.rank + step))
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            if step % comm.size == comm.rank:
                torch.cuda._sleep(SLEEP_CYCLES // 20)
            work = dist.all_reduce(x, async_op=True)
        work.wait()
        found = x.clone()  # on the default stream
        del x
        torch.full((count,), -1.0)  # memory that was freed too early would be this
        wanted = sum(rank + step for rank in range(comm.size))
        assert bool((found == wanted).all()), step


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
@pytest.mark.parametrize("count", [1000, 1 << 20, 1 << 22])
@on_ranks(fixture="ranks")
def test_a_captured_graph_replays_the_calls(comm: Communicator, count: int) -> None:
    x, out = torch.empty(count), torch.empty(comm.size * count)

    def step() -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        work = dist.all_gather_into_tensor(out, y + comm.rank, async_op=True)
        work.wait()
        return out + 1

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.fill_(1)
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    for value in range(50):
        x.fill_(value)
        graph.replay()
        wanted = 2 * value * comm.size + torch.arange(comm.size).repeat_interleave(count) + 1.0
        assert bool((result == wanted).all()), value


def split(comm: Communicator) -> None:
    group = dist.split_group(split_ranks=[[rank] for rank in range(comm.size)])
    assert group.size() == 1
    everyone = dist.split_group(split_ranks=[list(range(comm.size))])
    x = torch.ones(5)
    dist.all_reduce(x, group=everyone)
    assert x[0] == comm.size


def beside_another_backend(comm: Communicator) -> None:
    kinds = dist.get_backend_config()
    x, y = torch.ones(100, device="cpu"), torch.ones(100)
    dist.all_reduce(x)
    dist.all_reduce(y)
    assert x[0] == y[0] == comm.size, kinds
    everyone: list[Any] = [None] * comm.size
    dist.all_gather_object(everyone, comm.rank)
    assert everyone == list(range(comm.size))
    dist.barrier()


@pytest.mark.parametrize("backend", ["cpu:gloo,cuda:commlib", "cpu:commlib,cuda:nccl", "commlib", "cuda:commlib"])
def test_other_backends_stand_beside_and_a_device_is_bound(tmp_path: Path, backend: str) -> None:
    with Ranks(min(GPUS, 4), backend="shm", timeout_s=60.0, deadline_s=120.0) as made:
        made.run(start, str(tmp_path / "store"), backend, True)
        if backend != "cuda:commlib":
            made.run(beside_another_backend)
        if backend == "commlib":
            made.run(split)
        made.run(end)
        made.run(start, str(tmp_path / "second"), backend, False)  # a second time in one process
        made.run(on_the_gpu)
        made.run(end)


def on_the_gpu(comm: Communicator) -> None:
    x = torch.ones(1000)
    dist.all_reduce(x)
    assert float(x[0]) == comm.size


@pytest.mark.parametrize("seed", range(4))
def test_a_mixture_of_calls_gives_every_value(ranks: Ranks, seed: int) -> None:
    ranks.run(mix, seed, True)


def sums_on(comm: Communicator, device: torch.device, current: int | None) -> None:
    if current is not None:
        torch.cuda.set_device(current)
    for count, later in ((64, False), (3 << 20, False), (64, True), (3 << 20, True)):
        with torch.cuda.device(device):
            torch.cuda._sleep(SLEEP_CYCLES // 10)
            x = torch.full((count,), comm.rank + 1.0, device=device)
        work = dist.all_reduce(x, async_op=later)
        if later:
            work.wait()
            work.get_future().wait()
        assert x.eq(comm.size * (comm.size + 1) / 2).all(), (count, later, current)
        assert current is None or torch.cuda.current_device() == current


def sums_whatever_gpu_is_current(comm: Communicator, path: str) -> None:
    mine, other = torch.device("cuda", comm.rank), (comm.rank + 1) % comm.size
    start(comm, path, "commlib", False)
    sums_on(comm, mine, other)  # the group's first call, too
    for current in (None, other, comm.rank):  # in a thread that has no context yet
        with ThreadPoolExecutor(1) as thread:
            thread.submit(sums_on, comm, mine, current).result()
    end(comm)
    assert torch.cuda.current_device() == other


def test_any_gpu_may_be_current_or_none(tmp_path: Path) -> None:
    with Ranks(min(GPUS, 4), backend="shm", timeout_s=60.0, deadline_s=120.0) as made:
        made.run(sums_whatever_gpu_is_current, str(tmp_path / "store"))


def is_over_after_wait(comm: Communicator, path: str, blocking: str, count: int) -> bool:
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = blocking
    start(comm, path, "commlib", False)
    x = torch.ones(count)
    dist.all_reduce(x, async_op=True).wait()  # a kernel's first call may wait for all that runs
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda._sleep(SLEEP_CYCLES)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return work.is_completed()


@pytest.mark.parametrize("count", [64, 1 << 22])
@pytest.mark.parametrize("blocking", ["0", "1"])
def test_wait_holds_up_the_host_if_the_variable_says_so(tmp_path: Path, blocking: str, count: int) -> None:
    with Ranks(min(GPUS, 4), backend="shm", timeout_s=60.0, deadline_s=120.0) as made:
        over = made.run(is_over_after_wait, str(tmp_path / "store"), blocking, count)
        assert set(over) == {blocking == "1"}
