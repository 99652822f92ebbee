"""Streams: calls are ordered by the library on whichever streams they are made, and Work orders the caller's."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from commlib.communicator import Communicator
from tests.gpu.fresh import fresh
from tests.gpu.on_ranks import on_every_rank
from tests.gpu.steady import Steady, first, pinned, warm_up
from tests.on_ranks import on_ranks

SLEEP_CYCLES = 400_000_000  # 0.2 s and more
PAUSE_CYCLES = 2_000_000


def doze(comm: Communicator, cycles: int = SLEEP_CYCLES, rank: int = 0) -> None:
    """Hold up the current stream of one rank, so that orders that are wrong show."""
    if comm.rank == rank:
        torch.cuda._sleep(cycles)


@pytest.mark.parametrize("where", ["default", "side"])
@pytest.mark.parametrize("algorithm", ["lsa_ll_oneshot", "lsa_ll128_oneshot", "lsa_twoshot", "nccl_direct"])
@on_every_rank
def test_a_call_reads_and_writes_in_the_order_of_its_stream(comm: Communicator, algorithm: str, where: str) -> str:
    """The input is written right before and the output read right after, on the same stream."""
    stream = torch.cuda.default_stream() if where == "default" else torch.cuda.Stream()
    found = []
    with pinned(comm, "all_reduce", algorithm), torch.cuda.stream(stream):
        call = Steady(comm, "all_reduce", 70_001)
        warm_up(call)
        for step in range(10):
            doze(comm, PAUSE_CYCLES, rank=step % comm.size)
            call.load(step)
            call.run()
            doubled = call.out * 2
            found.append(call.wrong(step))
            found.append("" if torch.equal(doubled, 2 * call.out) else f"step {step}: read before it was written")
    return first(found)


@on_every_rank
def test_calls_keep_their_order_around_a_capture(comm: Communicator) -> str:
    made = fresh(comm, patience_s=2.0)
    with pinned(made, "all_reduce", "lsa_ll_oneshot"):
        early, captured, late = (Steady(made, "all_reduce", 101) for _ in range(3))
        warm_up(early, captured, late)
        early.load(1)
        late.load(2)
        torch.cuda.synchronize()
        made.barrier()
        one, another, third = (torch.cuda.Stream() for _ in range(3))
        with torch.cuda.stream(one):
            doze(made)
            early.run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(third):
            graph.capture_begin()
            captured.run()
            graph.capture_end()
        with torch.cuda.stream(another):
            late.run()
        torch.cuda.synchronize()
        made.check()
        found = [early.wrong(1), late.wrong(2)]
    made.close()
    return first(found)


@on_every_rank
def test_work_tells_and_orders_what_torchs_does(comm: Communicator) -> list[str]:
    """What a Work tells while its call waits for rank 0, and after it."""
    call = Steady(comm, "all_reduce", 70_001)
    warm_up(call)
    call.load(3)
    torch.cuda.synchronize()
    comm.barrier()
    doze(comm)
    work = comm.all_reduce(call.x, out=call.out, async_op=True)
    at_once = work.is_completed()
    ordered = work.wait()
    doubled = call.out * 2
    torch.cuda.synchronize()
    claims = {
        "is torch's Work": isinstance(work, dist.Work),
        "is not done at once": not at_once,
        "wait() says True": ordered is True,
        "wait() orders the current stream": torch.equal(doubled, 2 * call.out),
        "is done": work.is_completed() and work.is_success(),
        "has no exception": work.exception() is None,
        "result() is the tensor": work.result() is call.out,
        "the future has the tensor": work.get_future().wait().data_ptr() == call.out.data_ptr(),
    }
    return [claim for claim, true in claims.items() if not true] + ([call.wrong(3)] if call.wrong(3) else [])


@on_every_rank
def test_a_call_follows_the_asynchronous_one_before_it(comm: Communicator) -> str:
    before, after = Steady(comm, "all_reduce", 20_011), Steady(comm, "all_reduce", 20_011)
    warm_up(before, after)
    found = []
    for step in range(10):
        before.load(step)
        after.load(step + 1)
        doze(comm, PAUSE_CYCLES, rank=step % comm.size)
        work = comm.all_reduce(before.x, out=before.out, async_op=True)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            after.run()
            torch.cuda.current_stream().synchronize()
        work.wait()
        found += [before.wrong(step), after.wrong(step + 1)]
    return first(found)


@on_every_rank
def test_a_call_under_way_keeps_its_tensors(comm: Communicator) -> bool:
    """The caller drops its input at once; its memory must not serve others before the call has read it."""
    count = 1 << 20
    out = torch.empty(comm.size * count, device=comm.device)
    comm.all_gather_into_tensor(out, torch.zeros(count, device=comm.device))
    torch.cuda.synchronize()
    good = True
    for step in range(1, 6):
        x = torch.full((count,), float(step), device=comm.device)
        doze(comm, PAUSE_CYCLES, rank=step % comm.size)
        work = comm.all_gather_into_tensor(out, x, async_op=True)
        del x
        others = [torch.full((count,), -1.0, device=comm.device) for _ in range(3)]
        work.wait()
        good &= bool((out == step).all())
        del others
    return good


@on_ranks(2, "nccl_ranks")
def test_a_call_lets_go_of_its_tensors_once_the_stream_that_it_was_made_from_has_waited(comm: Communicator) -> None:
    x, found = torch.ones(5003, device=comm.device), []
    for stream in (torch.cuda.Stream(), torch.cuda.current_stream()):
        work: Any = comm.all_reduce(x, async_op=True)
        with torch.cuda.stream(stream):
            work.wait()
        found.append(bool(work._held))
    torch.cuda.synchronize()
    assert found == [True, False]
