"""commlib debug on GPUs: a rank that does not launch, or replay, is named with the call, while the others wait."""

from __future__ import annotations

import time
from typing import Any

import torch

from commlib.communicator import Communicator
from commlib.debug import Finding, findings_of, look
from commlib.testing import Ranks
from commlib.timing.graph import capture

AWAY_S, LONG_S = 4.0, 30.0
CALLS_OF_GRAPH = 3


def replay(comm: Communicator, missing: int, away_s: float) -> int:
    """Replay a graph of all-reduces four times; the last rank leaves the replay `missing` for later."""
    x = torch.ones(1024, device=comm.device)
    calls = [lambda: comm.all_reduce(x, "max")] * CALLS_OF_GRAPH
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = capture(calls)
    comm.barrier()
    for number in range(4):
        if number == missing and comm.rank == comm.size - 1:
            torch.cuda.synchronize()
            time.sleep(away_s)
        graph.replay()
    torch.cuda.synchronize()
    graph.reset()
    return int(x.sum().item())


def stay_away(comm: Communicator, away_s: float) -> None:
    """All but the last rank make an eager call."""
    x = torch.ones(1024, device=comm.device)
    comm.all_reduce(x, "max")
    torch.cuda.synchronize()
    if comm.rank == comm.size - 1:
        time.sleep(away_s)
    comm.all_reduce(x, "max")
    torch.cuda.synchronize()


def found_while(ranks: Ranks, handle: Any) -> Finding:
    """Look until there is a finding."""
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        if found := findings_of(look(ranks.pids), stuck_s=0.5):
            handle.join()
            return found[0]
        time.sleep(0.1)
    raise AssertionError("nothing was found")


def test_a_rank_that_has_not_launched_is_named(nccl_ranks: Ranks) -> None:
    found = found_while(nccl_ranks, nccl_ranks.start(stay_away, AWAY_S))
    last = nccl_ranks.size - 1
    assert (found.kind, found.ranks) == ("missing", (last,))
    assert f"the GPU of rank {last} has not come to all_reduce float32 max" in found.text
    assert "its program made all_reduce #" in found.text


def test_a_rank_that_has_not_replayed_is_named_with_the_call_inside_of_the_graphs(nccl_ranks: Ranks) -> None:
    found = found_while(nccl_ranks, nccl_ranks.start(replay, 2, AWAY_S))
    last = nccl_ranks.size - 1
    assert (found.kind, found.ranks) == ("missing", (last,))
    # It has made two of four replays: calls of the kernels that are over differ by none, and the next one is awaited.
    slots = [slot for rank in look(nccl_ranks.pids).ranks.values() for slot in rank.slots]
    assert all(slot.gpu.at_ns for slot in slots if not slot.closed and slot.entered)
    assert "with those of replayed graphs" in found.text


def test_calls_of_a_graph_are_kept_as_captured(nccl_ranks: Ranks) -> None:
    nccl_ranks.run(replay, -1, 0.0)
    for rank in look(nccl_ranks.pids).ranks.values():
        calls = [call for slot in rank.slots for call in slot.calls.values()]
        assert sum(call.captured for call in calls) >= CALLS_OF_GRAPH
        assert all(call.algorithm for call in calls)
