"""The communicator's calls as a user makes them: messages, asynchronous calls, splits, objects, memory, errors."""

import os
import pickle
import threading
import time

import pytest
import torch
import torch.distributed as dist

import commlib
from commlib.communicator import Communicator
from commlib.debug.record import records_of
from commlib.errors import CommError, Unsupported
from commlib.plan import Plan
from tests.errors_and_logs import message_of
from tests.on_ranks import on_ranks

SIZES = (0, 1, 8, 9, 5000, 70_001, 400_000)


@pytest.mark.parametrize("count", SIZES)
@on_ranks()
def test_messages_cross_where_all_send_before_they_receive(comm: Communicator, count: int) -> None:
    peers = [r for r in range(comm.size) if r != comm.rank]
    for peer in peers:
        comm.send(torch.full((count,), float(comm.rank * 10 + peer)), peer)
    for peer in reversed(peers):
        assert (comm.recv(torch.empty(count), peer) == peer * 10 + comm.rank).all()


@pytest.mark.parametrize("count", SIZES)
@on_ranks()
def test_asynchronous_receives_may_come_first_in_any_order(comm: Communicator, count: int) -> None:
    peers = [r for r in range(comm.size) if r != comm.rank]
    boxes = {peer: torch.empty(count) for peer in peers}
    works = [comm.recv(boxes[peer], peer, async_op=True) for peer in peers]
    works += [comm.send(torch.full((count,), float(comm.rank)), peer, async_op=True) for peer in reversed(peers)]
    for work in works:
        assert work.wait()
    assert all((boxes[peer] == peer).all() for peer in peers)


@pytest.mark.parametrize("count", SIZES)
@on_ranks()
def test_rank_0_and_the_last_pass_on_with_one_call_and_the_others_with_two(comm: Communicator, count: int) -> None:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, out = torch.full((count,), float(comm.rank)), torch.empty(count)
    if comm.rank in (0, comm.size - 1):
        assert comm.send_recv(x, after, out, before) is out
    else:
        comm.send(x, after)
        comm.recv(out, before)
    assert (out == before).all()
    assert torch.equal(comm.send_recv(x, comm.rank, torch.empty(count), comm.rank), x)


@on_ranks(2)
def test_both_ways_at_once_differ_in_length_and_come_behind_earlier_messages(comm: Communicator) -> None:
    peer = 1 - comm.rank
    first = comm.recv(torch.empty(3), peer, async_op=True)
    sent = comm.send(torch.full((3,), 7.0), peer, async_op=True)
    x = torch.full((100_000,), 5.0) if comm.rank == 0 else torch.ones(2, dtype=torch.int64)
    out = torch.empty(2, dtype=torch.int64) if comm.rank == 0 else torch.empty(100_000)
    comm.send_recv(x, peer, out, peer)
    assert (float(first.result()[0]), float(out[-1]), float(sent.wait())) == (7.0, (1.0, 5.0)[comm.rank], 1.0)


@on_ranks(2)
def test_a_rank_may_send_to_itself(comm: Communicator) -> None:
    x = torch.arange(300_000)
    comm.send(x, comm.rank)
    assert torch.equal(comm.recv(torch.empty_like(x), comm.rank), x)


@on_ranks(2)
def test_a_receive_is_refused_while_another_thread_is_in_one_from_that_rank(comm: Communicator) -> None:
    if comm.rank == 1:
        comm.recv(torch.empty(1), 0)
        comm.send(torch.ones(3), 0)
        return
    thread = threading.Thread(target=comm.recv, args=(torch.empty(3), 1))
    thread.start()
    while not any(slot.waits for record in records_of(os.getpid()) for slot in record.slots()):
        time.sleep(0.001)
    x, told = torch.ones(1), "was called while another thread is inside a recv from that rank"
    assert told in message_of(lambda: comm.recv(x, 1), CommError)
    assert told in message_of(lambda: comm.send_recv(x, 1, torch.empty(1), 1), CommError)
    comm.send(x, 1)
    thread.join()


@on_ranks()
def test_asynchronous_calls_run_in_order_and_before_later_ones(comm: Communicator) -> None:
    tensors = [torch.full((n,), comm.rank + 1.0) for n in SIZES]
    works = [comm.all_reduce(x, async_op=True) for x in tensors]
    last = comm.all_reduce(torch.ones(3))  # comes after all of them
    assert all(work.is_completed() for work in works)
    assert isinstance(works[0], dist.Work)
    assert works[1].get_future().wait() is tensors[1]
    total = sum(range(1, comm.size + 1))
    assert all((x == total).all() for x in tensors)
    assert float(last[0]) == comm.size


@on_ranks()
def test_an_asynchronous_error_comes_with_wait(comm: Communicator) -> None:
    work = comm.broadcast(torch.ones(3), 99, async_op=True)
    assert message_of(work.wait, ValueError) == "src=99 is not a rank of this communicator: 0 to 3"
    assert isinstance(work.exception(), ValueError)
    assert work.is_completed() and not work.is_success()


@on_ranks(fixture="each_ranks")
def test_split_ranks_by_key_and_leaves_out_the_colourless(comm: Communicator) -> None:
    odd = comm.split(comm.rank % 2, key=-comm.rank)
    nobody = comm.split(None if comm.rank else 7)
    assert (nobody is None) == (comm.rank != 0)
    mates = [2, 0] if comm.rank % 2 == 0 else [3, 1]
    assert (odd.rank, odd.size, odd.all_gather_object(comm.rank)) == (mates.index(comm.rank), 2, mates)
    assert float(odd.all_reduce(torch.tensor([float(comm.rank)]))) == sum(mates)
    alone = odd.split(comm.rank)
    assert alone.size == 1
    for made in (alone, odd, nobody):
        if made is not None:
            made.close()


@on_ranks(fixture="each_ranks")
def test_objects_of_any_length_reach_all(comm: Communicator) -> None:
    mine = {"rank": comm.rank, "data": "x" * (1000 * comm.rank)}
    everyone = comm.all_gather_object(mine)
    assert [each["rank"] for each in everyone] == list(range(comm.size))
    assert comm.broadcast_object(mine if comm.rank == comm.size - 1 else None, comm.size - 1) == everyone[-1]


@on_ranks(fixture="each_ranks")
def test_calls_return_what_they_promise(comm: Communicator) -> None:
    x = torch.full((2, 3), float(comm.rank))
    stacked = comm.gather(x, 1)
    assert (stacked is None) == (comm.rank != 1)
    if stacked is not None:
        assert stacked.shape == (comm.size, 2, 3)
        assert (stacked[2] == 2).all()
    assert torch.equal(comm.scatter(stacked, 1, out=None if comm.rank == 1 else torch.empty(2, 3)), x)
    rows = torch.arange(comm.size * 2.0).view(comm.size, 2) + 100 * comm.rank
    out, splits = torch.empty_like(rows), [1] * comm.size
    assert comm.all_to_all_single(out, rows, splits, splits) is out
    assert torch.equal(out[:, 0], torch.arange(comm.size) * 100.0 + 2 * comm.rank)
    assert comm.all_reduce(x, dist.ReduceOp.SUM) is x
    other = torch.empty_like(x)
    assert comm.all_reduce(x, out=other) is other
    assert torch.equal(x, torch.full((2, 3), 6.0))
    assert torch.equal(other, torch.full((2, 3), 24.0))


@on_ranks()
def test_empty_gives_symmetric_memory_and_says_when_it_is_full(comm: Communicator) -> None:
    x = comm.empty((1000,), torch.bfloat16)
    x.fill_(comm.rank + 1)
    comm.all_reduce(x)
    assert (x == 10).all()
    y = comm.empty(2, 3)
    freed = y.data_ptr()
    del y
    assert comm.empty(2, 3).data_ptr() == freed
    nothing, one = comm.empty(0), comm.empty(8)
    del nothing
    assert comm.empty(8).data_ptr() != one.data_ptr()
    full = message_of(lambda: comm.empty(1 << 40))
    assert "largest free block" in full
    assert "COMMLIB_MAX_BYTES" in full
    assert "comm.empty" in message_of(comm.symmetric, Unsupported)


@on_ranks(3)
def test_a_root_that_is_far_ahead_waits_for_the_last_rank(comm: Communicator) -> None:
    for value in range(12):
        x = torch.full((1 << 18,), float(value if comm.rank == 0 else -1))
        time.sleep(0.02 * (comm.rank == 1))
        comm.broadcast(x, 0)
        assert x.eq(value).all()


@on_ranks()
def test_ranks_need_not_agree_where_their_tensors_lie(comm: Communicator) -> None:
    usual, symmetric = comm.plan, Plan.only({"all_reduce": "shm_symmetric"}, base=comm.plan)
    for count in (3, 300, 5000, 200_003):
        for who in range(1 << comm.size):
            comm.use(symmetric if who % 2 else usual)
            x = comm.empty(count) if who >> comm.rank & 1 else torch.empty(count)
            x.copy_(torch.arange(count) % 7 + comm.rank)
            comm.all_reduce(x)
            assert torch.equal(x, (torch.arange(count) % 7) * 4.0 + 6)
            assert comm.all_reduce(x.fill_(comm.rank), out=torch.empty(count)).eq(6).all()  # out lies elsewhere
            y = comm.empty(count) if who >> comm.rank & 1 else torch.empty(count)
            y.fill_(comm.rank)
            out = torch.empty(count * comm.size)
            comm.all_gather_into_tensor(out, y)
            assert torch.equal(out, torch.arange(comm.size).repeat_interleave(count).float())
            comm.broadcast(y, who % comm.size)
            assert (y == who % comm.size).all()
    comm.use(usual)


@pytest.mark.parametrize("world", [2, 4])
@on_ranks()
def test_explain_says_what_runs(comm: Communicator, world: int) -> None:
    """At every edge of every range of all_reduce the record has what explain says."""
    seen = []
    for rule in (rule for rule in comm.plan.rules_of(comm.size) if rule.op == "all_reduce"):
        for limit in [min(r.max_bytes or 1 << 20, 1 << 20) for r in rule.ranges]:
            for num_bytes in (limit - 1, limit, limit + 1):
                new = comm.empty if rule.placement == "symmetric" else torch.empty
                comm.all_reduce(new(num_bytes, dtype=torch.uint8).zero_())
                slots = [slot for record in records_of(os.getpid()) for slot in record.slots()]
                (calls,) = [slot.calls for slot in slots if slot.id == comm.resources.recorded_as]
                last = calls[max(calls)]
                seen.append(comm.explain("all_reduce", num_bytes, torch.uint8, placement=rule.placement).algorithm)
                assert last.algorithm == seen[-1]
    assert len(seen) > 10 and len(set(seen)) > 2


@pytest.mark.parametrize("later", [False, True])
@on_ranks(2)
def test_a_forked_child_is_told_to_make_its_own(comm: Communicator, later: bool) -> None:
    """It must not touch its parent's communicator, nor wait for its threads."""
    comm.all_reduce(torch.ones(1), async_op=True).wait()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            comm.all_reduce(torch.ones(1), async_op=True).wait() if later else comm.all_reduce(torch.ones(1))
            answer = "no error"
        except CommError as error:
            answer = str(error)
        os.write(write, answer.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "this communicator is closed; call commlib.init() for a new one"
    comm.all_reduce(torch.ones(1))


# --- one process ------------------------------------------------------------------------------------------------------


def test_what_cannot_be_followed_is_refused(comm: Communicator) -> None:
    with pytest.raises(ValueError, match="chunk_bytes 100 is not a multiple of 64"):
        comm.use(Plan.only({"all_reduce": "shm_oneshot"}, params={"chunk_bytes": 100}))
    with pytest.raises(ValueError, match="no reduction 'bor' for float32"):
        comm.all_reduce(torch.ones(4), "bor")


def test_a_communicator_cannot_be_pickled_and_closes_twice(comm: Communicator) -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(comm)
    with comm:
        kept = comm.empty(10)
    comm.close()
    kept.fill_(1)
    with pytest.raises(ValueError, match="is closed"):
        comm.empty(1)
    with pytest.raises(CommError, match="is closed"):
        comm.check()
    comm.dispatcher.detour = False  # as a thread saw it just before another one closed
    with pytest.raises(CommError, match="is closed"):
        comm.all_reduce(kept)


def test_what_a_program_raises_behind_a_close_comes_out_and_an_arena_holds_all_that_was_asked_for() -> None:
    with pytest.raises(KeyError), commlib.init(backend="shm", bootstrap="single", max_bytes=1024) as comm:
        assert comm.empty(256).numel() == 256
        comm.close()
        raise KeyError
