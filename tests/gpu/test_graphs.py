"""CUDA graphs: a replayed call does what the call does, in any mixture of replays and calls."""

import threading
import time
from contextlib import nullcontext
from itertools import product

import pytest
import torch

from commlib.communicator import Communicator
from commlib.tools.testing import Ranks
from tests.gpu.on_ranks import on_every_rank
from tests.gpu.steady import ALGORITHMS, Steady, capture, checked, pinned, take_turns, warm_up

REPLAYS, CAPTURES = 20, 6000
BY_THE_PLAN = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
# Bytes over 4: every range of the shipped plans, and none of them at a round number.
COUNTS = (0, 1, 1001, 9_999, 75_003, 400_001, 1_500_001, 5_000_001)


@pytest.mark.parametrize(("name", "algorithm"), [*ALGORITHMS, *product(BY_THE_PLAN, (None,))])
@on_every_rank
def test_every_replay_gives_the_values_of_its_inputs(comm: Communicator, name: str, algorithm: str | None) -> str:
    with pinned(comm, name, algorithm) if algorithm else nullcontext():
        calls = [Steady(comm, name, count) for count in ((33, 70_001) if algorithm else COUNTS)]
        warm_up(*calls)
        graph = capture(*calls)
    return checked(REPLAYS, graph.replay, *calls)


@pytest.mark.parametrize(
    "algorithm", ["lsa_ll_oneshot", "lsa_lamport_twoshot", "lsa_oneshot", "lsa_twoshot", "nccl_direct"]
)
@on_every_rank
def test_replays_and_calls_continue_each_other(comm: Communicator, algorithm: str) -> str:
    with pinned(comm, "all_reduce", algorithm):
        captured, called = Steady(comm, "all_reduce", 70_001), Steady(comm, "all_reduce", 5003)
        warm_up(captured, called)
        return take_turns(3 * REPLAYS, [capture(captured)], captured, called)


@on_every_rank
def test_captures_survive_the_watch_over_calls_of_nccl(comm: Communicator) -> str:
    """Threads that watch deadlines look at the call of NCCL's while the same stream is captured: thousands of times."""
    with pinned(comm, "all_reduce", "nccl_direct"):
        call, y = Steady(comm, "all_reduce", 33), torch.zeros(64, device=comm.device)
        warm_up(call)
        stream, stop = torch.cuda.Stream(), threading.Event()
        hammer = threading.Thread(target=lambda: [comm.check() for _ in iter(stop.is_set, True)])
        hammer.start()
        try:
            for number in range(CAPTURES):
                with torch.cuda.stream(stream):
                    call.run()
                    graph = torch.cuda.CUDAGraph()
                    try:
                        graph.capture_begin(capture_error_mode="thread_local")
                        for _ in range(20):
                            y.add_(1)
                        graph.capture_end()
                    except RuntimeError as error:
                        return f"rank {comm.rank}: capture {number}: {error}"
        finally:
            stop.set()
            hammer.join()
            torch.cuda.synchronize()
    return ""


@pytest.mark.parametrize("algorithm", ["lsa_ll_oneshot", "lsa_ll128_oneshot", "lsa_twoshot", "nccl_direct"])
@on_every_rank
def test_calls_on_both_branches_of_a_capture_are_kept_in_order(comm: Communicator, algorithm: str) -> str:
    """Without an order between them, calls on both branches would take each other's packets."""
    with pinned(comm, "all_reduce", algorithm):
        calls = [Steady(comm, "all_reduce", 20_011) for _ in range(6)]
        warm_up(*calls)
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph):
            main = torch.cuda.current_stream()
            calls[0].run()
            side.wait_stream(main)
            for here, there in ((1, 2), (3, 4)):
                calls[here].run()
                with torch.cuda.stream(side):
                    calls[there].run()
            main.wait_stream(side)
            calls[5].run()
    return checked(REPLAYS, graph.replay, *calls)


def wait_in_a_replay(comm: Communicator, algorithm: str, delay_s: float) -> float:
    """How long a replayed barrier holds this rank's GPU, when rank 0 comes late."""
    with pinned(comm, "barrier", algorithm):
        comm.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            comm.barrier()
        graph.replay()
        torch.cuda.synchronize()
    comm.barrier()
    if comm.rank == 0:
        time.sleep(delay_s)
    start = time.monotonic()
    graph.replay()
    torch.cuda.synchronize()
    return time.monotonic() - start


@pytest.mark.parametrize("algorithm", ["lsa_ll_exchange", "nccl_direct"])
def test_a_captured_barrier_waits_when_it_is_replayed(nccl_ranks: Ranks, algorithm: str) -> None:
    first_rank, *others = nccl_ranks.run(wait_in_a_replay, algorithm, 0.3)
    assert first_rank < 0.2
    assert min(others) > 0.2
