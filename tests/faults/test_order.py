"""Asynchronous and synchronous calls mixed, messages beside splits, and what is open when a communicator ends."""

import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from commlib.communicator import Communicator
from commlib.errors import Closed, CommError
from commlib.tools.testing import Ranks
from tests.errors_and_logs import message_of
from tests.on_ranks import on_ranks


@pytest.fixture(params=["shm_ranks", pytest.param("torch_ranks", marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest) -> Ranks:
    return request.getfixturevalue(request.param)


@on_ranks(fixture="pair")
def test_calls_that_are_open_at_close_end_with_closed(comm: Communicator) -> None:
    """Close while one call is under way and others queue behind it: each of them ends, and says that it was closed."""
    if comm.rank == 1:
        time.sleep(1.0)  # rank 0 closes first
        return
    works = [comm.recv(torch.zeros(1), 1, async_op=True) for _ in range(3)]
    futures = [work.get_future() for work in works]
    time.sleep(0.1)
    comm.close()
    ends = []
    for wait in (*(work.wait for work in works), *(future.wait for future in futures)):
        try:
            wait()
            ends.append("done")
        except CommError as error:
            ends.append(type(error).__name__)
    with pytest.raises(Closed):
        comm.all_reduce(torch.ones(1), async_op=True)
    assert ends == ["Closed"] * 6


@on_ranks(fixture="pair")
def test_close_waits_for_no_call_of_its_own_and_stops_no_other_communicator(comm: Communicator) -> None:
    """Rank 0 closes a part while its call is under way, then sends what rank 1 waits for before that call."""
    part = comm.split(0)
    if comm.rank == 1:
        comm.recv(torch.zeros(3), 0)
        return
    work = part.all_reduce(torch.ones(1000), async_op=True)
    time.sleep(0.1)  # for it to be under way
    part.close()
    comm.send(torch.zeros(3), 1)
    assert type(work.exception()) is Closed


class Unsaid(Exception):
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def leave_with(comm: Communicator, how: str) -> str:
    """Rank 0 leaves its block with an error; the others hear of it, whatever its text is."""
    errors = {
        "long": ValueError("ü€😀" * 500),
        "shifted": ValueError("x" + "ü€😀" * 500),
        "surrogate": ValueError("half \ud800 a pair"),
        "unsaid": Unsaid(),
    }
    try:
        with comm:
            if comm.rank == 0:
                raise errors[how]
            comm.barrier()
    except (ValueError, Unsaid):
        return "raised"
    except CommError as error:
        return str(error)
    return "no error"


@pytest.fixture(params=["shm", pytest.param("torch", marks=pytest.mark.slow)])
def pair(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(2, backend=request.param, timeout_s=20.0, max_bytes=1 << 16, deadline_s=40.0) as ranks:
        yield ranks


@pytest.mark.parametrize("later", [False, True])
@on_ranks(2, "ranks")
def test_a_message_comes_after_the_asynchronous_collectives_before_it(comm: Communicator, later: bool) -> None:
    """Rank 0 reduces asynchronously and sends at once: the message is of what was reduced."""
    x = torch.full((200_000,), comm.rank + 1.0)
    if comm.rank == 1:
        time.sleep(0.2)
    work = comm.all_reduce(x, async_op=True)
    if comm.rank == 0:
        sent = comm.send(x, 1, async_op=later)
        if sent is not None:
            sent.wait()
    if comm.rank == 1:
        comm.recv(x, 0)
    work.wait()
    assert float(x[-1]) == 3.0


@on_ranks(2, "ranks")
def test_nothing_waits_for_a_receive_that_is_pending(comm: Communicator) -> None:
    """Neither a message nor a collective waits for a receive whose message comes last."""
    box = torch.zeros(3)
    pending = comm.recv(box, 1 - comm.rank, async_op=True)
    total = comm.all_reduce(torch.ones(1))
    comm.send(torch.full((3,), comm.rank + 5.0), 1 - comm.rank)
    pending.wait()
    assert [float(total), *box.tolist()] == [2.0] + [6.0 - comm.rank] * 3


@on_ranks()
def test_a_split_that_fails_on_one_rank_fails_on_its_color_alone(comm: Communicator) -> None:
    """Rank 1 cannot make its half: the others of its color hear why, the rest has its own, and the parent goes on."""
    usual = comm.plan
    if comm.rank == 1:
        comm.plan = usual.overridden({"all_reduce": "shm_oneshot"})
    if comm.rank < 2:
        assert "ranks were given different plans" in message_of(lambda: comm.split(0))
    else:
        comm.split(1).close()
    comm.plan = usual
    assert float(comm.all_reduce(torch.ones(1))) == 4.0


@pytest.mark.parametrize("how", ["long", "shifted", "surrogate", "unsaid"])
def test_the_peers_of_a_block_that_fails_are_told_whatever_its_error_says(how: str) -> None:
    with Ranks(2, backend="shm", timeout_s=20.0, max_bytes=1 << 16) as ranks:
        raised, heard = ranks.run(leave_with, how)
    assert raised == "raised"
    assert heard.startswith("rank 0 left the communicator with ")
    assert "\N{REPLACEMENT CHARACTER}" not in heard  # what is too long is cut between two characters


@on_ranks(2, "ranks")
def test_an_asynchronous_call_keeps_its_communicator(comm: Communicator) -> None:
    part = comm.split(0)
    time.sleep(0.2 * comm.rank)
    x, peer = torch.tensor([comm.rank + 1.0]), 1 - comm.rank
    works: list[Any] = [part.send(torch.ones(1), peer, async_op=True), part.all_reduce(x, async_op=True)]
    works.append(part.recv(torch.empty(1), peer, async_op=True))
    del part
    gc.collect()
    assert [float(work.result()) for work in works] == [1.0, 3.0, 1.0]
