"""Several communicators on the same GPUs: each keeps its own order, none waits for another."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from commlib.communicator import Communicator
from commlib.errors import CommError
from commlib.plan import Plan
from commlib.testing import Ranks
from tests.gpu.fresh import fresh
from tests.gpu.steady import Steady, capture, first, warm_up

ROUNDS = 20
LARGE = 6 << 20  # elements: 24 MiB
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0


def split_twice(comm: Communicator, overlapping: bool) -> list[Communicator]:
    """Make two of all ranks, or with four ranks neighbours {0, 1} {2, 3} and others {0, 2} {1, 3}."""
    colors = (comm.rank // 2, comm.rank % 2) if overlapping else (0, 0)
    made = [comm.split(color, comm.rank) for color in colors]
    return [part for part in made if part is not None]


def in_any_order(comm: Communicator, overlapping: bool, in_graphs: bool) -> str:
    """Ranks start the two calls in opposite orders, on two streams."""
    made = split_twice(comm, overlapping)
    calls = [Steady(made[0], "all_reduce", 33), Steady(made[1], "all_gather", 5003)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    warm_up(*calls)
    graphs = [capture(call) for call in calls] if in_graphs else []
    runs: list[Callable[[], None]] = [graph.replay for graph in graphs] or [call.run for call in calls]
    found = []
    for step in range(ROUNDS):
        for call in calls:
            call.load(step)
        torch.cuda.synchronize()
        for i in (0, 1) if (comm.rank + step) % 2 else (1, 0):
            with torch.cuda.stream(streams[i]):
                runs[i]()
        torch.cuda.synchronize()
        found += [call.wrong(step) for call in calls]
    leave(made)
    return first(found)


def without_a_pause(comm: Communicator, in_graphs: bool) -> str:
    """Each stream has fifty calls under way, in the order that all ranks share."""
    made = [comm, *split_twice(comm, False)]
    calls = [Steady(part, "all_reduce", count) for part, count in zip(made, (33, 5003, 1001), strict=True)]
    streams = [torch.cuda.Stream() for _ in calls]
    warm_up(*calls)
    runs: list[Callable[[], None]] = [capture(call).replay for call in calls] if in_graphs else [c.run for c in calls]
    found = []
    for step in range(3):
        for call in calls:
            call.load(step)
        torch.cuda.synchronize()
        for _ in range(50):
            for stream, run in zip(streams, runs, strict=True):
                with torch.cuda.stream(stream):
                    run()
        torch.cuda.synchronize()
        found += [call.wrong(step) for call in calls]
    leave(made[1:])
    return first(found)


def on_branches_of_a_graph(comm: Communicator) -> str:
    """Calls of different communicators need no order: a graph may run them side by side."""
    made = split_twice(comm, False)
    calls = [Steady(part, "all_reduce", count) for part, count in zip(made, (33, 5003), strict=True)]
    warm_up(*calls)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        calls[0].run()
        with torch.cuda.stream(side):
            calls[1].run()
        main.wait_stream(side)
    found = []
    for step in range(ROUNDS):
        for call in calls:
            call.load(step)
        graph.replay()
        found += [call.wrong(step) for call in calls]
    leave(made)
    return first(found)


def large_calls(comm: Communicator, in_graphs: bool) -> str:
    """Two communicators, two streams, tensors whose kernels fill the GPU: once these kept each other out for ever.

    Each rank's GPU comes late to another of the two, so that without an order each would start with another one.
    """
    made = split_twice(comm, False)
    calls = [Steady(part, "all_reduce", LARGE) for part in made]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    warm_up(*calls)
    graph = capture_on_branches(calls, comm.rank % 2) if in_graphs else None
    found = []
    for step in range(3):
        for call in calls:
            call.load(step)
        torch.cuda.synchronize()
        for _ in range(100):
            if graph is not None:
                graph.replay()
                continue
            for at, (stream, call) in enumerate(zip(streams, calls, strict=True)):
                with torch.cuda.stream(stream):
                    come_late(at == comm.rank % 2)
                    call.run()
        torch.cuda.synchronize()
        found += [call.wrong(step) for call in calls]
    leave(made)
    return first(found)


def rows_beside_nccl(comm: Communicator) -> str:
    """Rank 1's program orders a call of NCCL's and rows in clusters; on other ranks NCCL's call comes late.

    The clusters have a block on every multiprocessor, and NCCL's blocks want whole ones: without an order these would
    find no place on the other ranks, and rank 1 would wait for them before its rows.
    """
    made = split_twice(comm, False)
    made[0].use(Plan.only({"gather": "nccl_direct"}, base=made[0].plan))
    gather, rows = Steady(made[0], "gather", 400_000), Steady(made[1], "all_reduce_rms_norm", 43 * 32, torch.bfloat16)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    warm_up(gather, rows)
    found = []
    for step in range(ROUNDS):
        gather.load(step)
        rows.load(step)
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[0]):
            come_late(comm.rank != 1)
            gather.run()
        if comm.rank == 1:
            streams[1].wait_stream(streams[0])
        with torch.cuda.stream(streams[1]):
            rows.run()
        torch.cuda.synchronize()
        found += [gather.wrong(step), rows.wrong(step)]
    leave(made)
    return first(found)


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


def in_opposite_orders(comm: Communicator) -> list[str]:
    """Every second rank calls the second communicator first: the kernels do not fit beside each other."""
    warm = Steady(comm, "all_reduce", LARGE)
    warm_up(warm)
    made = [fresh(comm, patience_s=1.0, max_bytes=1 << 20) for _ in range(2)]
    calls = [Steady(part, "all_reduce", LARGE) for part in made]
    warm_up(*calls)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    comm.barrier()
    for i in (0, 1) if comm.rank % 2 else (1, 0):
        with torch.cuda.stream(streams[i]):
            calls[i].run()
    torch.cuda.synchronize()
    heard = []
    for part in made:
        try:
            part.check()
        except CommError as error:
            heard.append(f"{type(error).__name__}: {error}")
        part.close()
    return heard


def leave(made: list[Communicator]) -> None:
    """Close together: after a capture only a call in no graph tells the library that all is done."""
    for part in made:
        part.barrier()
        part.close()


@pytest.mark.parametrize("in_graphs", [False, True], ids=["eager", "graph"])
def test_two_communicators_work_at_once_in_any_order(nccl_ranks: Ranks, in_graphs: bool) -> None:
    assert set(nccl_ranks.run(in_any_order, False, in_graphs)) == {""}


@pytest.mark.skipif(GPUS < 4, reason=f"needs four GPUs, found {GPUS}")
@pytest.mark.parametrize("in_graphs", [False, True], ids=["eager", "graph"])
def test_communicators_of_overlapping_ranks_work_at_once(nccl_ranks: Ranks, in_graphs: bool) -> None:
    assert set(nccl_ranks.run(in_any_order, True, in_graphs)) == {""}


@pytest.mark.parametrize("in_graphs", [False, True], ids=["eager", "graph"])
def test_streams_full_of_calls_do_not_hold_each_other_up(nccl_ranks: Ranks, in_graphs: bool) -> None:
    assert set(nccl_ranks.run(without_a_pause, in_graphs)) == {""}


def test_one_graph_runs_two_communicators_side_by_side(nccl_ranks: Ranks) -> None:
    assert set(nccl_ranks.run(on_branches_of_a_graph)) == {""}


@pytest.mark.parametrize("in_graphs", [False, True], ids=["eager", "graph"])
def test_large_calls_of_two_communicators_do_not_keep_each_other_out(nccl_ranks: Ranks, in_graphs: bool) -> None:
    assert set(nccl_ranks.run(large_calls, in_graphs)) == {""}


def test_rows_in_clusters_leave_nccl_its_place_or_wait(nccl_ranks: Ranks) -> None:
    assert set(nccl_ranks.run(rows_beside_nccl)) == {""}


def test_large_calls_in_different_orders_end_with_an_error_that_names_both_communicators(nccl_ranks: Ranks) -> None:
    for heard in nccl_ranks.run(in_opposite_orders):
        assert any(text.startswith("CommTimeout: ") for text in heard), heard
        assert any(
            re.search(r"communicator \d+ of this process; calls of communicator \d+ wait", text)
            and "same order on every rank" in text
            for text in heard
        ), heard
