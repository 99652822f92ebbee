"""commlib debug on GPUs: a rank that does not launch, or replay, is named with the call, while the others wait."""

import time
from typing import Any

import torch

from commlib.communicator import Communicator
from commlib.core.hooks import SlowCall
from commlib.debug.findings import Finding, findings_of
from commlib.debug.jobs import look, moments
from commlib.debug.record import records_of
from commlib.tools.debug.slow import watch
from commlib.tools.testing import Ranks
from commlib.tools.timing.graph import capture

AWAY_S, LONG_S, NAP_S, APART_S = 4.0, 30.0, 0.3, 0.5
CALLS_OF_GRAPH = 3


def replay(comm: Communicator, missing: int, away_s: float) -> None:
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


def stay_away(comm: Communicator, away_s: float) -> None:
    """All but the last rank make an eager call."""
    x = torch.ones(1024, device=comm.device)
    comm.all_reduce(x, "max")
    torch.cuda.synchronize()
    if comm.rank == comm.size - 1:
        time.sleep(away_s)
    comm.all_reduce(x, "max")
    torch.cuda.synchronize()


def found_while(ranks: Ranks, handle: Any, kind: str) -> Finding:
    """Look until the first finding is of this kind: where GPUs were is known a little after the error that ends all."""
    records = [record for pid in ranks.pids for record in records_of(pid)]
    found: list[Finding] = []
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline and not (found and found[0].kind == kind):
        ((before, job),) = moments([records], APART_S)
        found = findings_of(job, before, stuck_s=0.5)
    handle.join()
    assert found
    assert found[0].kind == kind
    return found[0]


def test_a_rank_that_has_not_launched_is_named(nccl_ranks: Ranks) -> None:
    nccl_ranks.run(stay_away, 0.0)  # a rank that compiles a kernel for the first time is away, too
    found = found_while(nccl_ranks, nccl_ranks.start(stay_away, AWAY_S), "missing")
    last = nccl_ranks.size - 1
    assert found.ranks == (last,)
    assert f"the GPU of rank {last} has not come to all_reduce float32 max" in found.text
    assert "its program made all_reduce #" in found.text


def test_a_rank_that_has_not_replayed_is_named_with_the_call_inside_of_the_graphs(nccl_ranks: Ranks) -> None:
    nccl_ranks.run(replay, -1, 0.0)
    calls = [call for one in look(nccl_ranks.pids).ranks.values() for slot in one.slots for call in slot.calls.values()]
    assert all(call.algorithm for call in calls)
    found = found_while(nccl_ranks, nccl_ranks.start(replay, 2, AWAY_S), "missing")
    last = nccl_ranks.size - 1
    assert found.ranks == (last,)
    slots = [slot for rank in look(nccl_ranks.pids).ranks.values() for slot in rank.slots]
    assert all(slot.gpu.at_ns for slot in slots if not slot.closed and slot.entered)
    assert f"call 1 of {CALLS_OF_GRAPH} in replay 3 of graph " in found.text
    assert "(captured at test_debug.py:" in found.text
    assert "and 2 replays of graph " in found.text


def replay_another(comm: Communicator) -> None:
    """Capture two graphs; at last the last rank replays the other one."""
    x, y = torch.ones(1024, device=comm.device), torch.ones(512, device=comm.device)
    for one in (x, y):
        comm.all_reduce(one, "max")
    torch.cuda.synchronize()
    graphs = [capture([lambda one=one: comm.all_reduce(one, "max")] * CALLS_OF_GRAPH) for one in (x, y)]
    comm.barrier()
    graphs[0].replay()
    graphs[comm.rank == comm.size - 1].replay()
    torch.cuda.synchronize()
    deadline = time.monotonic() + AWAY_S
    while time.monotonic() < deadline:  # the record says it without a call of the program's
        time.sleep(0.1)


def test_of_a_rank_that_replays_another_graph_both_are_named() -> None:
    with Ranks(2, backend="nccl", timeout_s=60.0, max_bytes=1 << 20) as two:
        found = found_while(two, two.start(replay_another), "differs")
    assert "rank 0 was in all_reduce float32 max" in found.text
    assert f"of 4096 bytes, call 1 of {CALLS_OF_GRAPH} in replay 2 of graph 1" in found.text
    assert f"of 2048 bytes, call 1 of {CALLS_OF_GRAPH} in replay 1 of graph 2" in found.text


def late_rank(parent: Communicator, seconds: float) -> list[SlowCall]:
    """The last rank comes late to each replay, and to one eager call among many."""
    told: list[SlowCall] = []
    comm = parent.split(0)
    assert comm is not None
    x = torch.ones(1024, device=comm.device)
    comm.on_slow(told.append, factor=20.0)
    for step in range(60):
        if step == 30 and comm.rank == comm.size - 1:
            time.sleep(NAP_S)
        comm.all_reduce(x, "max")
        torch.cuda.synchronize()
    graph = capture([lambda: comm.all_reduce(x, "max")] * CALLS_OF_GRAPH)
    comm.barrier()
    over = torch.zeros(1, device=comm.device)
    deadline = time.monotonic() + seconds
    while not over.item():
        if comm.rank == comm.size - 1:
            time.sleep(NAP_S / 10)
        graph.replay()
        over.fill_(time.monotonic() > deadline)
        comm.all_reduce(over, "max")
    graph.reset()
    comm.close()
    return told


def test_a_rank_that_comes_late_is_named_while_the_job_goes_on(nccl_ranks: Ranks) -> None:
    handle = nccl_ranks.start(late_rank, AWAY_S)
    deadline, late = time.monotonic() + LONG_S, [0]
    records = [record for pid in nccl_ranks.pids for record in records_of(pid)]
    while time.monotonic() < deadline and nccl_ranks.size - 1 not in late:
        late = [one.rank for one in watch(records, 1.0)[1].late]
    assert late == [nccl_ranks.size - 1]
    slow = handle.result(0)
    assert max(call.seconds for call in slow) > NAP_S / 2
    assert {(call.op, call.num_bytes, call.late) for call in slow} == {("all_reduce", 4096, None)}
    handle.join()
