"""commlib debug: calls that torch's process groups make are in the record, and who has not come to one is named."""

import datetime
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commlib.communicator import Communicator
from commlib.debug.jobs import _late_peers, look
from commlib.debug.record import records_of
from commlib.tools.debug.page import page
from commlib.tools.testing import Ranks
from tests.debug.test_debug import LONG_S, stay_away, wait_for
from tests.on_ranks import on_ranks

Call = Callable[[Communicator], None]


@pytest.fixture(scope="module")
def live() -> Iterator[Ranks]:
    """In the place of ranks with shared memory."""
    with Ranks(3, backend="torch", timeout_s=LONG_S) as ranks:
        yield ranks


@on_ranks(fixture="three")
def test_calls_are_recorded_with_what_ranks_must_agree_on(comm: Communicator) -> None:
    x, many = torch.ones(30_000), torch.ones(90_000)
    comm.all_reduce(x, "max")
    comm.broadcast(x[:5].to(torch.bfloat16), 2)
    comm.all_gather_into_tensor(many, x)
    comm.all_reduce(x[:1], async_op=True).wait()
    comm.barrier()
    if comm.rank == 0:
        comm.recv(x[:5], 1)
    elif comm.rank == 1:
        comm.send(x[:5], 0)
    (record,) = records_of(os.getpid())
    (slot,) = [slot for slot in record.slots() if not slot.closed]
    assert (slot.backend, slot.entered, slot.finished, slot.waits) == ("torch", 5, 5, ())
    messages = [f"{call.details}, #{call.stream}, {call.root} {call.sends}" for call in slot.messages.values()]
    made = [slot.calls[number] for number in sorted(slot.calls)]
    assert [str(call) for call in made] == [
        "all_reduce #1 (float32, 30000 elements, max)",
        "broadcast #2 (bfloat16, 5 elements, root 2)",
        "all_gather #3 (float32, 30000 elements)",
        "all_reduce #4 (float32, 1 element, sum)",
        "barrier #5",
    ]
    assert [bool(call.finished_ns) for call in made] == [True, False, True, False, False]  # large ones are timed
    of_ranks = ["float32, 5 elements, #1, 1 False"], ["float32, 5 elements, #1, 0 True"], []
    assert messages == of_ranks[comm.rank]


def differ(comm: Communicator) -> None:
    comm.barrier()
    comm.all_reduce(torch.ones(3 if comm.rank == 1 else 4))


def never_send(comm: Communicator) -> None:
    comm.barrier()
    if comm.rank == 0:
        comm.recv(torch.ones(7), 1)
    elif comm.rank == 1:
        time.sleep(1.5)
        comm.send(torch.ones(7), 0)


NO_MESSAGE = "the other end of recv from rank 1 (message #1, float32, 7 elements)"


@pytest.mark.parametrize(
    ("call", "kind", "rank", "text"),
    [
        (stay_away, "missing", 2, "rank 2 has not made all_reduce #2 (bfloat16, 14336 el"),
        (differ, "differs", 1, "ranks 0 and 2 made"),
        (never_send, "missing", 1, NO_MESSAGE),
    ],
    ids=["missing", "differs", "message"],
)
def test_what_keeps_the_ranks_is_named(three: Ranks, call: Call, kind: str, rank: int, text: str) -> None:
    three.start(call)
    assert wait_for(three, kind, text).ranks == (rank,)


def test_of_ranks_that_have_not_come_the_one_furthest_behind_is_awaited() -> None:
    process = SimpleNamespace(gone=False, halted="")
    slots = [SimpleNamespace(entered=entered) for entered in (5, 4, 3)]
    ranks: Any = {pid: SimpleNamespace(slot=lambda _, pid=pid: slots[pid], process=process) for pid in range(3)}
    peers = [SimpleNamespace(pid=pid) for pid in range(3)]
    slot: Any = SimpleNamespace(id=1, rank=0, entered=5, handed_over=False, peers=peers)
    assert list(_late_peers(ranks, slot)) == [2, 1]


def through_torch(comm: Communicator, path: str, seconds: float) -> None:
    """Make calls of a group of torch's whose CPU gloo serves, next to ours; one rank stays away from the second."""
    timeout = datetime.timedelta(seconds=LONG_S)
    store = dist.FileStore(path, comm.size)
    dist.init_process_group("cpu:gloo,cuda:commlib", store=store, rank=comm.rank, world_size=comm.size, timeout=timeout)
    dist.all_gather([torch.empty(5) for _ in range(comm.size)], torch.ones(5))
    if comm.rank == 1:
        time.sleep(seconds)
    dist.reduce(torch.ones(9, dtype=torch.int32), 2, op=dist.ReduceOp.MAX)
    dist.destroy_process_group()


@pytest.mark.slow
def test_calls_that_an_engine_of_torch_serves_are_recorded_too(three: Ranks, tmp_path: Path) -> None:
    handle = three.start(through_torch, str(tmp_path / "store"), 2.0)
    finding = wait_for(three, "missing", "rank 1 has not made reduce #2 (int32, 9 elements, max, root 2)")
    assert "its last one there is all_gather #1 (float32, 5 elements)" in finding.text
    before, job = look(three.pids), look(three.pids)
    shown = " ".join(page(job, before, []).split())  # lines are as wide as the terminal
    assert "all_gather #1 (float32, 5 elements) was handed to torch's group" in shown
    handle.join()
