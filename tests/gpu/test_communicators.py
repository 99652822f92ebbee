"""Several communicators on the same GPUs: each keeps its own order, none waits for another."""

from collections.abc import Callable

import pytest
import torch

from commlib.communicator import Communicator
from commlib.plan import Plan
from commlib.tools.testing import Ranks
from tests.gpu.conftest import GPUS
from tests.gpu.fresh import leave
from tests.gpu.on_ranks import on_every_rank
from tests.gpu.steady import Steady, capture, checked, first, settled, warm_up

ROUNDS = 20
LARGE, MEDIUM = 6 << 20, 750_001  # elements: 24 MiB, and 3 MB
OF_FOUR = pytest.mark.skipif(GPUS < 4, reason=f"needs four GPUs, found {GPUS}")
REPLAYED = [(), (0,), (1,), (0, 1)]  # of two communicators


def split_twice(comm: Communicator, overlapping: bool) -> list[Communicator]:
    """Make two of all ranks, or with four ranks neighbours {0, 1} {2, 3} and others {0, 2} {1, 3}."""
    colors = (comm.rank // 2, comm.rank % 2) if overlapping else (0, 0)
    made = [comm.split(color, comm.rank) for color in colors]
    return [part for part in made if part is not None]


@pytest.mark.parametrize("in_graphs", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("overlapping", [False, pytest.param(True, marks=OF_FOUR)], ids=["same ranks", "overlapping"])
@on_every_rank
def test_two_communicators_work_at_once_in_any_order(comm: Communicator, overlapping: bool, in_graphs: bool) -> str:
    """Ranks start the two calls in opposite orders, on two streams."""
    made = split_twice(comm, overlapping)
    calls = [Steady(made[0], "all_reduce", 33), Steady(made[1], "all_gather", 5003)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    warm_up(*calls)
    graphs = [capture(call) for call in calls] if in_graphs else []
    runs: list[Callable[[], None]] = [graph.replay for graph in graphs] or [call.run for call in calls]

    def start(step: int) -> None:
        for i in (0, 1) if (comm.rank + step) % 2 else (1, 0):
            with torch.cuda.stream(streams[i]):
                runs[i]()

    wrong = settled(ROUNDS, start, *calls)
    leave(made)
    return wrong


@pytest.mark.parametrize("counts", [(33, 5003), (LARGE, LARGE)], ids=str)
@on_every_rank
def test_one_graph_runs_two_communicators_side_by_side(comm: Communicator, counts: tuple[int, int]) -> str:
    """Calls of different communicators need no order, also where their kernels fill the GPU, which is late to one."""
    made = split_twice(comm, False)
    calls = [Steady(part, "all_reduce", count) for part, count in zip(made, counts, strict=True)]
    warm_up(*calls)
    wrong = checked(ROUNDS, capture_on_branches(calls, comm.rank % 2).replay, *calls)
    leave(made)
    return wrong


@on_every_rank
def test_rows_in_clusters_leave_nccl_its_place_or_wait(comm: Communicator) -> str:
    """Rank 1's program orders a call of NCCL's and rows in clusters; on other ranks NCCL's call comes late.

    The clusters have a block on every multiprocessor, and NCCL's blocks want whole ones: without an order these would
    find no place on the other ranks, and rank 1 would wait for them before its rows.
    """
    made = split_twice(comm, False)
    made[0].use(Plan.only({"gather": "nccl_direct"}, base=made[0].plan))
    gather, rows = Steady(made[0], "gather", 400_000), Steady(made[1], "all_reduce_rms_norm", 43 * 32, torch.bfloat16)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    warm_up(gather, rows)

    def start(step: int) -> None:
        with torch.cuda.stream(streams[0]):
            come_late(comm.rank != 1)
            gather.run()
        if comm.rank == 1:
            streams[1].wait_stream(streams[0])
        with torch.cuda.stream(streams[1]):
            rows.run()

    wrong = settled(ROUNDS, start, gather, rows)
    leave(made)
    return wrong


def come_late(late: bool) -> None:
    if late:
        torch.cuda._sleep(400_000)  # cycles: 0.2 ms


def capture_on_branches(calls: list[Steady], late: int) -> torch.cuda.CUDAGraph:
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        come_late(late == 0)
        calls[0].run()
        with torch.cuda.stream(side):
            come_late(late == 1)
            calls[1].run()
        main.wait_stream(side)
    return graph


def side_by_side(comm: Communicator, replayed: tuple[int, ...], opposite: bool) -> str:
    """Two communicators with kernels that fill the GPU; every second rank's GPU, or host, starts the other one first.

    What the first one replays was captured before there was a second one.
    """
    made, calls, runs = [comm], list[list[Steady]](), list[list[Callable[[], None]]]()
    for at in (0, 1):
        if at == 1:
            part = comm.split(0, comm.rank)
            assert part is not None
            made.append(part)
        calls.append([Steady(made[at], "all_reduce", count) for count in (LARGE, MEDIUM)])
        warm_up(*calls[at])
        runs.append([capture(call).replay if at in replayed else call.run for call in calls[at]])
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    found = []
    for step in range(100):
        chosen = step % 2, step // 2 % 2
        for own, which in zip(calls, chosen, strict=True):
            own[which].load(step)
        torch.cuda.synchronize()
        late = (comm.rank + step) % 2
        for at in (1, 0) if opposite and late == 0 else (0, 1):
            with torch.cuda.stream(streams[at]):
                come_late(at == late)
                runs[at][chosen[at]]()
        torch.cuda.synchronize()
        found += [own[which].wrong(step) for own, which in zip(calls, chosen, strict=True)]
    leave(made[1:])
    return first(found)


@pytest.mark.parametrize("opposite", [False, True], ids=["late GPUs", "opposite hosts"])
@pytest.mark.parametrize("replayed", REPLAYED, ids=str)
def test_large_calls_and_replays_of_two_communicators_run_side_by_side(
    nccl_ranks: Ranks, replayed: tuple[int, ...], opposite: bool
) -> None:
    assert set(nccl_ranks.run(side_by_side, replayed, opposite)) == {""}


def test_so_they_do_where_streams_share_one_queue_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    with Ranks(min(GPUS, 4), backend="nccl", timeout_s=20.0, max_bytes=1 << 20, deadline_s=60.0) as ranks:
        for replayed in REPLAYED:
            assert set(ranks.run(side_by_side, replayed, False)) == {""}, replayed
