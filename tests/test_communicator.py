"""The communicator's calls as a user makes them: messages, asynchronous calls, splits, objects, memory, errors."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commlib.communicator import Communicator
from commlib.errors import CommError, Unsupported
from commlib.plan import Plan
from commlib.testing import Ranks

SIZES = (0, 1, 8, 9, 5000, 70_001, 400_000)


def exchange_both_ways(comm: Communicator, count: int) -> bool:
    """Every rank sends to every other before it receives anything."""
    peers = [r for r in range(comm.size) if r != comm.rank]
    for peer in peers:
        comm.send(torch.full((count,), float(comm.rank * 10 + peer)), peer)
    good = True
    for peer in reversed(peers):
        x = torch.empty(count)
        comm.recv(x, peer)
        good &= bool((x == peer * 10 + comm.rank).all())
    return good


def receive_before_send(comm: Communicator, count: int) -> bool:
    """Asynchronous receives are posted first; their order does not matter."""
    peers = [r for r in range(comm.size) if r != comm.rank]
    boxes = {peer: torch.empty(count) for peer in peers}
    works = [comm.recv(boxes[peer], peer, async_op=True) for peer in peers]
    works += [comm.send(torch.full((count,), float(comm.rank)), peer, async_op=True) for peer in reversed(peers)]
    for work in works:
        assert work.wait()
    return all(bool((boxes[peer] == peer).all()) for peer in peers)


def exchange_at_once(comm: Communicator, count: int) -> bool:
    """Rank 0 and the last pass on with one call, the others with two; then everyone to itself."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, out = torch.full((count,), float(comm.rank)), torch.empty(count)
    if comm.rank in (0, comm.size - 1):
        assert comm.send_recv(x, after, out, before) is out
    else:
        comm.send(x, after)
        comm.recv(out, before)
    own = comm.send_recv(x, comm.rank, torch.empty(count), comm.rank)
    return bool((out == before).all()) and torch.equal(own, x)


def exchange_of_two_lengths(comm: Communicator) -> list[float]:
    """What comes may be of another length and type than what goes, and comes behind asynchronous messages."""
    peer = 1 - comm.rank
    first = comm.recv(torch.empty(3), peer, async_op=True)
    sent = comm.send(torch.full((3,), 7.0), peer, async_op=True)
    x = torch.full((100_000,), 5.0) if comm.rank == 0 else torch.ones(2, dtype=torch.int64)
    out = torch.empty(2, dtype=torch.int64) if comm.rank == 0 else torch.empty(100_000)
    comm.send_recv(x, peer, out, peer)
    return [float(first.result()[0]), float(out[-1]), float(sent.wait())]


def messages_in_order(comm: Communicator) -> list[int]:
    if comm.rank == 0:
        for i in range(50):
            comm.send(torch.full((i * 1000,), i), 1)
        return []
    if comm.rank > 1:
        return []
    got = []
    for i in range(50):
        x = torch.empty(i * 1000, dtype=torch.int64)
        comm.recv(x, 0)
        assert bool((x == i).all())
        got.append(i)
    return got


def to_oneself(comm: Communicator) -> bool:
    x, out = torch.arange(300_000), torch.empty(300_000, dtype=torch.int64)
    comm.send(x, comm.rank)
    comm.recv(out, comm.rank)
    return torch.equal(x, out)


def wrong_size(comm: Communicator) -> str:
    try:
        if comm.rank == 0:
            comm.send(torch.ones(3), 1)
            comm.barrier()
        else:
            comm.recv(torch.ones(4), 0)
        return "no error"
    except (ValueError, CommError) as error:
        return str(error)


def asynchronous(comm: Communicator) -> bool:
    works, tensors = [], [torch.full((n,), comm.rank + 1.0) for n in SIZES]
    for x in tensors:
        works.append(comm.all_reduce(x, async_op=True))
    last = torch.ones(3)
    comm.all_reduce(last)  # comes after all of them
    done = all(work.is_completed() for work in works)
    assert isinstance(works[0], dist.Work)
    assert works[1].get_future().wait() is tensors[1]
    total = sum(range(1, comm.size + 1))
    return done and all(bool((x == total).all()) for x in tensors) and float(last[0]) == comm.size


def asynchronous_error(comm: Communicator) -> str:
    work = comm.broadcast(torch.ones(3), 99, async_op=True)
    try:
        work.wait()
    except ValueError as error:
        assert work.exception() is error
        return str(error)
    return "no error"


def split_twice(comm: Communicator) -> list[Any]:
    odd = comm.split(comm.rank % 2, key=-comm.rank)
    assert odd is not None
    mine = float(odd.all_reduce(torch.tensor([float(comm.rank)])))
    alone = odd.split(comm.rank)
    assert alone is not None
    nobody = comm.split(None if comm.rank else 7)
    got = [odd.rank, odd.size, mine, alone.size, nobody is None, odd.all_gather_object(comm.rank)]
    for made in (alone, odd, nobody):
        if made is not None:
            made.close()
    return got


def objects(comm: Communicator) -> bool:
    mine = {"rank": comm.rank, "data": "x" * (1000 * comm.rank)}
    everyone = comm.all_gather_object(mine)
    from_last = comm.broadcast_object(mine if comm.rank == comm.size - 1 else None, comm.size - 1)
    return [e["rank"] for e in everyone] == list(range(comm.size)) and from_last == everyone[-1]


def shapes_and_results(comm: Communicator) -> bool:
    x = torch.full((2, 3), float(comm.rank))
    stacked = comm.gather(x, 1)
    assert (stacked is None) == (comm.rank != 1)
    if stacked is not None:
        assert stacked.shape == (comm.size, 2, 3)
        assert bool((stacked[2] == 2).all())
    part = comm.scatter(stacked, 1, out=None if comm.rank == 1 else torch.empty(2, 3))
    assert torch.equal(part, x)
    rows = torch.arange(comm.size * 2.0).view(comm.size, 2) + 100 * comm.rank
    out = torch.empty_like(rows)
    splits = [1] * comm.size
    assert comm.all_to_all_single(out, rows, splits, splits) is out
    assert torch.equal(out[:, 0], torch.arange(comm.size) * 100.0 + 2 * comm.rank)
    assert comm.all_reduce(x, dist.ReduceOp.SUM) is x
    other = torch.empty_like(x)
    assert comm.all_reduce(x, out=other) is other
    return torch.equal(x, torch.full((2, 3), 6.0)) and torch.equal(other, torch.full((2, 3), 24.0))


def symmetric_memory(comm: Communicator) -> tuple[bool, str, str]:
    x = comm.empty((1000,), torch.bfloat16)
    x.fill_(comm.rank + 1)
    comm.all_reduce(x)
    y = comm.empty(2, 3)
    reuse = y.data_ptr()
    del y
    again = comm.empty(2, 3).data_ptr() == reuse
    try:
        comm.empty(1 << 40)
        full = "no error"
    except CommError as error:
        full = str(error)
    try:
        comm.symmetric()
        redirect = "no error"
    except Unsupported as error:
        redirect = str(error)
    return bool((x == 10).all()) and again, full, redirect


def mixed_placement(comm: Communicator) -> bool:
    """Some ranks' tensors lie in the arena, others' do not: the result is the same."""
    good = True
    for count in (3, 300, 5000, 200_003):
        for who in range(1 << comm.size):
            x = comm.empty(count) if who >> comm.rank & 1 else torch.empty(count)
            x.copy_(torch.arange(count) % 7 + comm.rank)
            comm.all_reduce(x)
            good &= torch.equal(x, (torch.arange(count) % 7) * 4.0 + 6)
            y = comm.empty(count) if who >> comm.rank & 1 else torch.empty(count)
            y.fill_(comm.rank)
            out = torch.empty(count * comm.size)
            comm.all_gather_into_tensor(out, y)
            good &= torch.equal(out, torch.arange(comm.size).repeat_interleave(count).float())
            comm.broadcast(y, who % comm.size)
            good &= bool((y == who % comm.size).all())
    return good


def explanations(comm: Communicator) -> list[tuple[str, str, bool]]:
    """What explain says is what the native table finds, at every edge of every range."""
    seen = []
    for rule in comm.plan.rules_of(comm.size):
        for limit in [r.max_bytes or 1 << 30 for r in rule.ranges]:
            for num_bytes in (limit - 1, limit, limit + 1):
                said = comm.explain(rule.op, num_bytes, placement=rule.placement).algorithm
                found = comm._backend.choice(rule.op, num_bytes, "float32", "sum", rule.placement)  # type: ignore[attr-defined]
                if rule.placement == "symmetric" and not found.endswith("_symmetric"):
                    found = comm._backend.choice(rule.op, num_bytes, "float32", "sum", "plain")  # type: ignore[attr-defined]
                seen.append((said, found, said == found))
    return seen


def fork_and_use(comm: Communicator, later: bool) -> str:
    """A forked child must not touch its parent's communicator, nor wait for its threads."""
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
        answer = pipe.read()
    comm.all_reduce(torch.ones(1))
    return answer


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("exchange", [exchange_both_ways, receive_before_send, exchange_at_once])
def test_messages_cross(shm_ranks: Ranks, exchange: Callable[..., bool], count: int) -> None:
    assert shm_ranks.run(exchange, count) == [True] * 4


def test_both_ways_at_once_differ_in_length_and_come_behind_earlier_messages(shm_ranks: Ranks) -> None:
    assert shm_ranks.run(exchange_of_two_lengths, world=2) == [[7.0, 1.0, 1.0], [7.0, 5.0, 1.0]]


def test_messages_of_a_pair_keep_their_order(shm_ranks: Ranks) -> None:
    assert shm_ranks.run(messages_in_order)[1] == list(range(50))


def test_a_rank_may_send_to_itself(shm_ranks: Ranks) -> None:
    assert shm_ranks.run(to_oneself, world=2) == [True, True]


def test_a_message_of_another_size_is_an_error_on_both_sides() -> None:
    with Ranks(2, backend="shm", max_bytes=1 << 20) as ranks:
        answers = ranks.run(wrong_size)
    text = "recv on rank 1 expects 4 elements of float32 (16 bytes) from rank 0, which sent 3 elements"
    assert all(answer.startswith(text) for answer in answers), answers


def test_asynchronous_calls_run_in_order_and_before_later_ones(shm_ranks: Ranks) -> None:
    assert shm_ranks.run(asynchronous) == [True] * 4


def test_an_asynchronous_error_comes_with_wait(shm_ranks: Ranks) -> None:
    answers = shm_ranks.run(asynchronous_error)
    assert answers == ["src=99 is not a rank of this communicator: 0 to 3"] * 4


@pytest.mark.parametrize("backend", ["shm_ranks", "torch_ranks"])
def test_split_ranks_by_key_and_leaves_out_the_colourless(request: pytest.FixtureRequest, backend: str) -> None:
    answers = request.getfixturevalue(backend).run(split_twice)
    assert answers[0] == [1, 2, 2.0, 1, False, [2, 0]]
    assert answers[3] == [0, 2, 4.0, 1, True, [3, 1]]


@pytest.mark.parametrize("backend", ["shm_ranks", "torch_ranks"])
@pytest.mark.parametrize("what", [objects, shapes_and_results])
def test_calls_return_what_they_promise(
    request: pytest.FixtureRequest, backend: str, what: Callable[..., bool]
) -> None:
    assert request.getfixturevalue(backend).run(what) == [True] * 4


def test_empty_gives_symmetric_memory_and_says_when_it_is_full(shm_ranks: Ranks) -> None:
    for good, full, redirect in shm_ranks.run(symmetric_memory):
        assert good
        assert "largest free block" in full
        assert "COMMLIB_MAX_BYTES" in full
        assert "comm.empty" in redirect


def test_ranks_need_not_agree_where_their_tensors_lie(shm_ranks: Ranks) -> None:
    assert shm_ranks.run(mixed_placement) == [True] * 4


def test_explain_says_what_runs(shm_ranks: Ranks) -> None:
    for world in (2, 4):
        said = shm_ranks.run(explanations, world=world)[0]
        assert [case for case in said if not case[2]] == []
        assert len(said) > 30


@pytest.mark.parametrize("later", [False, True])
def test_a_forked_child_is_told_to_make_its_own(shm_ranks: Ranks, later: bool) -> None:
    told = "this communicator is closed; call commlib.init() for a new one"
    assert shm_ranks.run(fork_and_use, later, world=2) == [told] * 2


# --- one process ------------------------------------------------------------------------------------------------------


@pytest.fixture
def alone() -> Communicator:
    import commlib

    return commlib.init(bootstrap="single", timeout_s=5.0, max_bytes=1 << 20)


def test_bad_input_is_refused_before_anything_starts(alone: Communicator) -> None:
    x = torch.ones(4, 4)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: alone.all_reduce(x.t()), "not contiguous"),
        (lambda: alone.all_reduce(x, "mean"), "unknown reduction 'mean'; use one of sum"),
        (lambda: alone.all_reduce(x, "bor"), "no reduction 'bor' for float32"),
        (lambda: alone.all_reduce(x, out=torch.ones(3)), "out has 3 elements, but needs 16"),
        (lambda: alone.all_reduce(x, out=torch.ones(16).double()), "out is float64, but x is float32"),
        (lambda: alone.all_gather_into_tensor(torch.ones(3), x), "out has 3 elements, but needs 16"),
        (lambda: alone.all_gatherv(x, x, [16, 1]), "sizes has 2 entries, but the communicator has 1 rank"),
        (lambda: alone.all_gatherv(x, x, [-1]), r"sizes\[0\] is -1"),
        (lambda: alone.broadcast(x, 1), "src=1 is not a rank of this communicator: 0 to 0"),
        (lambda: alone.reduce(x, -1), "dst=-1 is not a rank"),
        (lambda: alone.scatter(None, 0), "rank 0 is the source and needs x"),
        (lambda: alone.all_reduce(x.view(-1)[:8], out=x.view(-1)[4:12]), "overlap in part"),
        (lambda: alone.all_to_all_single(x.clone(), x, [3], [4]), "out_splits adds up to 3, but its tensor has 4 rows"),
        (lambda: alone.all_to_all_single(x.clone(), x, [-4]), r"out_splits\[0\] is -4"),
        (lambda: alone.all_to_all_single(x.clone(), x, [4, 0]), "out_splits has 2 entries, but the communicator has 1"),
        (lambda: alone.all_to_all_single(x, x, [4]), "cannot run in place; pass another out"),
        (lambda: alone.send_recv(x, 0, x, 0), "send_recv cannot run in place; pass another out"),
        (lambda: alone.send_recv(x, 0, torch.ones(1), 1), "src=1 is not a rank of this communicator: 0 to 0"),
        (lambda: alone.explain("all_sum", 8), "op is 'all_sum', but must be one of all_reduce"),
        (lambda: alone.use(Plan.only({"all_reduce": "nccl_direct"})), "no algorithm 'nccl_direct' on shm"),
        (
            lambda: alone.use(Plan.only({"all_reduce": "shm_oneshot"}, params={"chunkbytes": 4096})),
            "unknown params .'chunkbytes'.; shm_oneshot knows chunk_bytes and hot",
        ),
        (
            lambda: alone.use(Plan.only({"all_reduce": "shm_oneshot"}, params={"chunk_bytes": 100})),
            "chunk_bytes 100 is not a multiple of 64 between 4096 and",
        ),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_a_world_of_one_does_every_reduction_to_itself(alone: Communicator) -> None:
    x = torch.randn(1000)
    assert torch.equal(alone.all_reduce(x.clone(), "avg"), x)
    out = torch.empty_like(x)
    assert torch.equal(alone.all_reduce(x, "prod", out=out), x)
    alone.barrier()
    assert torch.equal(alone.gather(x, 0)[0], x)


def test_a_communicator_cannot_be_pickled_and_closes_twice(alone: Communicator) -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(alone)
    with alone:
        kept = alone.empty(10)
    alone.close()
    kept.fill_(1)
    with pytest.raises(ValueError, match="is closed"):
        alone.empty(1)
    with pytest.raises(CommError, match="is closed"):
        alone.check()
