"""Faults: a rank that dies, is late, disagrees or is interrupted never hangs the others, and the error names it."""

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from commlib.bootstrap.world import World
from commlib.collectives import COLLECTIVES
from commlib.collectives.spec import Call
from commlib.communicator import Communicator, create
from commlib.counts import ranks_text
from commlib.errors import CommError, CommTimeout, PeerLost
from commlib.plan import Plan
from commlib.tools.testing import Ranks
from tests.on_ranks import on_ranks

ARENA_BYTES = 1 << 20


def repeat(comm: Communicator, name: str, count: int) -> None:
    """Run one collective until it raises."""
    spec = COLLECTIVES[name]
    call = Call(comm.rank, comm.size, spec.whole(count), torch.float32)
    elements_in, elements_out = spec.shapes(call)
    x, out = torch.ones(elements_in), torch.zeros(elements_out)
    while True:
        spec.invoke(comm, x, out, call)


def repeat_pulled(comm: Communicator, name: str) -> None:
    """The same on megabytes that peers read in this rank's memory."""
    comm.use(Plan.only({name: "shm_oneshot"}, base=comm.plan, params={"pull": 1}))
    repeat(comm, name, 1 << 20)


def stay_away(comm: Communicator, late: list[int]) -> float:
    """Return how long the others wait for ranks that stay away until the communicator ends."""
    comm.barrier()
    start = time.monotonic()
    with pytest.raises(CommTimeout, match=rf"^{ranks_text(late)} did not come to all_reduce #2 .*within 1 s"):
        while comm.rank in late:
            comm.check()
            time.sleep(0.01)
        comm.all_reduce(torch.ones(3))
    return time.monotonic() - start


def fall_behind(comm: Communicator, last: int) -> str:
    """Rank 0 is ahead of another, which waits in a gather for the last."""
    comm.barrier()
    with pytest.raises(CommTimeout) as raised:
        if comm.rank == last:
            comm.recv(torch.ones(3), 0)
        comm.gather(torch.ones(3), 3 - last)
        comm.all_reduce(torch.ones(3))
    return str(raised.value)


def move_what_nobody_takes(comm: Communicator, call: str) -> None:
    if comm.rank == 1:
        with pytest.raises(CommTimeout, match=rf"^rank 0 did not come to rank 1's {call} .*rank 1 gave up"):
            for _ in range(100):
                getattr(comm, call)(torch.ones(3), 0)


def rank_0_waits_least(world: World, **options: object) -> Communicator:
    return create(world, timeout_s=30.0 if world.rank else 1.0, **options)  # type: ignore[arg-type]


def receive_another_type(comm: Communicator, how: str) -> str:
    x, large = torch.ones(5, dtype=(torch.float32, torch.int32)[comm.rank]), torch.ones(1 << 20)
    if how == "another size":
        x = torch.ones(5 + comm.rank)
    try:
        if how == "recv behind a send":  # while which it is taken out of the ring
            comm.send(large, 0) if comm.rank else (comm.send(x, 1), time.sleep(0.2), comm.recv(large, 1))
            comm.recv(x, 0) if comm.rank else None
        elif how == "send_recv":
            comm.send_recv(x, 1 - comm.rank, x.clone(), 1 - comm.rank)
        else:
            comm.recv(x, 0) if comm.rank else comm.send(x, 1)
            comm.barrier()
    except (ValueError, CommError) as error:
        return type(error).__name__
    return "no error"


def exchange_or_gather(comm: Communicator, odd: bool) -> None:
    """The exchange of splits is an all_gather of just such tensors as the other ranks gather."""
    each = torch.zeros(2 * comm.size, dtype=torch.int64)
    if odd:
        comm.all_to_all_single(torch.empty(comm.size), torch.ones(comm.size), [1] * comm.size, [1] * comm.size)
    else:
        comm.all_gather_into_tensor(each.repeat(comm.size), each)


def gather_sizes(comm: Communicator, last: tuple[int, int]) -> None:
    sizes = [*[8] * (comm.size - 2), *last]
    comm.all_gatherv(torch.empty(sum(sizes)), torch.ones(sizes[comm.rank]), sizes)


def scatter_sizes(comm: Communicator, last: tuple[int, int]) -> None:
    sizes = [*[8] * (comm.size - 2), *last]
    comm.reduce_scatterv(torch.empty(sizes[comm.rank]), torch.ones(sum(sizes)), sizes)


CALLS: dict[str, Callable[[Communicator, bool], object]] = {
    "operation": lambda comm, odd: comm.broadcast(torch.ones(8), 0) if odd else comm.all_reduce(torch.ones(8)),
    "dtype": lambda comm, odd: comm.all_reduce(torch.ones(8, dtype=torch.float64 if odd else torch.float32)),
    "count": lambda comm, odd: comm.all_reduce(torch.ones(5 if odd else 8)),
    "nothing": lambda comm, odd: comm.all_reduce(torch.ones(0 if odd else 8)),
    "redop": lambda comm, odd: comm.all_reduce(torch.ones(8), "max" if odd else "sum"),
    "root": lambda comm, odd: comm.broadcast(torch.ones(8), 1 if odd else 0),
    "sizes": lambda comm, odd: gather_sizes(comm, (7, 9) if odd else (8, 8)),
    "order of sizes": lambda comm, odd: gather_sizes(comm, (9, 7) if odd else (7, 9)),
    "order of sizes of sums": lambda comm, odd: scatter_sizes(comm, (9, 7) if odd else (7, 9)),
    "an exchange of splits": exchange_or_gather,  # what one rank calls is a part of what the others do
    "an object": lambda comm, odd: (
        comm.broadcast_object(None, 0) if odd else comm.broadcast(torch.zeros(1, dtype=torch.int64), 0)
    ),
}


def disagree(comm: Communicator, how: str) -> str:
    try:
        CALLS[how](comm, comm.rank == comm.size - 1)
        return "no error"
    except (ValueError, CommError) as error:
        return f"{type(error).__name__}: {error}"


def still_works(comm: Communicator) -> float:
    return float(comm.all_reduce(torch.ones(1)))


def close_and_init_again(comm: Communicator) -> str:
    """After an error: close returns at once, and the communicator says so when used."""
    with pytest.raises(CommError) as first:
        while True:  # the rank that is killed may have made the first calls
            comm.all_reduce(torch.ones(1))
    start = time.monotonic()
    comm.close()
    comm.close()
    spent = time.monotonic() - start
    with pytest.raises(CommError) as then:
        comm.all_reduce(torch.ones(1))
    return f"{first.typename}, closed in {spent < 0.5}, then: {then.value}"


def leave(comm: Communicator, who: int) -> str:
    if comm.rank == who:
        comm.close()
        return "closed"
    time.sleep(0.5 * (comm.rank == 0))  # the other one waits meanwhile, for this rank alone
    comm.send_recv(torch.ones(1), 2 - comm.rank, torch.ones(1), 2 - comm.rank)
    comm.all_reduce(torch.ones(1))
    return "done"


@pytest.fixture(scope="module")
def live() -> Iterator[Ranks]:
    with Ranks(3, backend="shm", timeout_s=20.0, max_bytes=ARENA_BYTES, deadline_s=30.0) as ranks:
        yield ranks


def rest(comm: Communicator) -> None:
    """Do nothing, but have this module imported."""


@pytest.fixture
def mortal(live: Ranks) -> Iterator[Ranks]:
    """Ranks that a test may kill or leave broken."""
    live.run(rest)
    yield live
    live.restart()


# Of each way to wait.
SOON = "all_reduce all_gatherv reduce_scatter all_to_all broadcast send_recv barrier".split()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in SOON)) for name in COLLECTIVES]
)
def test_a_killed_rank_is_named_by_all_others(mortal: Ranks, name: str) -> None:
    victim = random.Random(name).randrange(3)
    handle = mortal.start(repeat, name, 1 + 70_001 * (victim % 2))
    time.sleep(0.05)
    mortal.kill(victim)
    for rank in set(range(3)) - {victim}:
        with pytest.raises(PeerLost, match=f"rank {victim} .*died"):
            handle.result(rank)


@pytest.mark.parametrize("name", ["all_gather", "all_to_allv"])
def test_a_rank_that_is_killed_while_others_read_its_memory_is_named(mortal: Ranks, name: str) -> None:
    handle = mortal.start(repeat_pulled, name)
    time.sleep(0.2)
    mortal.kill(1)
    for rank in (0, 2):
        with pytest.raises(PeerLost, match=r"rank 1 .*died"):
            handle.result(rank)


@pytest.mark.parametrize("late", [[2], [1, 2]])
def test_late_ranks_are_named_and_all_raise_at_the_deadline(late: list[int]) -> None:
    with Ranks(3, backend="shm", timeout_s=1.0, max_bytes=ARENA_BYTES) as ranks:
        assert 0.9 < min(ranks.run(stay_away, late)) < 2.0  # the deadline is 1 s


@pytest.mark.parametrize("call", ["send", "recv"])
def test_a_message_that_nobody_sends_or_receives_names_both_ranks(call: str) -> None:
    with Ranks(2, backend="shm", timeout_s=1.0, max_bytes=ARENA_BYTES) as ranks:
        ranks.run(move_what_nobody_takes, call)


@pytest.mark.parametrize("last", [1, 2])
def test_of_ranks_that_have_not_come_the_one_furthest_behind_is_named(last: int) -> None:
    with Ranks(3, backend="shm", create=rank_0_waits_least, max_bytes=ARENA_BYTES) as ranks:
        for said in ranks.run(fall_behind, last):
            assert said.startswith(f"rank {last} did not come to all_reduce #3 ")


@pytest.mark.parametrize("how", ["another size", "recv", "send_recv", "recv behind a send"])
def test_a_message_of_another_size_or_of_a_type_of_as_many_bytes_is_refused(mortal: Ranks, how: str) -> None:
    sender, receiver = mortal.run(receive_another_type, how, world=2)
    assert receiver == "ValueError"
    assert sender != "no error" or how in ("send_recv", "recv behind a send")


@pytest.mark.parametrize("how", CALLS)
def test_a_disagreement_is_one_value_error_on_all_ranks_when_checked(checked_ranks: Ranks, how: str) -> None:
    answers = checked_ranks.run(disagree, how)
    assert len(set(answers)) == 1, answers
    assert answers[0].startswith("ValueError: ranks disagree: rank 0: ")
    assert re.findall(r"rank (\d): [^;]* with other sizes", answers[0]) == ["2"] * ("sizes" in how)
    assert checked_ranks.run(still_works) == [3.0] * 3


@pytest.fixture(scope="module")
def checked_ranks() -> Iterator[Ranks]:
    with Ranks(3, backend="shm", timeout_s=20.0, max_bytes=1 << 20, checked=True) as ranks:
        yield ranks


@pytest.mark.parametrize("how", ["operation", "dtype", "count", "redop", "an exchange of splits"])
def test_a_disagreement_is_an_error_on_all_ranks_also_unchecked(mortal: Ranks, how: str) -> None:
    answers = mortal.run(disagree, how)
    assert all(answer.startswith("CommError: ranks disagree: rank ") for answer in answers), answers


ALL_ROOTS, NO_ROOT = [0, 1, 2], [1, 2, 0]


@pytest.mark.parametrize(
    ("name", "roots"),
    [("broadcast", ALL_ROOTS), ("scatter", ALL_ROOTS), ("reduce", NO_ROOT)],
    ids=lambda value: value if isinstance(value, str) else "",
)
@on_ranks(fixture="mortal")
def test_roots_that_differ_are_named_by_the_next_call_where_no_rank_reads_another(comm, name, roots) -> None:
    x = torch.ones(4)
    calls = ", ".join(rf"rank {rank} called {name} #1 \([^)]*root {root}\)" for rank, root in enumerate(roots))
    with pytest.raises(CommError, match=f"^ranks disagree: {calls}, which shows in all_reduce #2"):
        if name == "scatter":
            comm.scatter(torch.ones(4 * comm.size), roots[comm.rank], out=x)
        else:
            getattr(comm, name)(x, roots[comm.rank])
        comm.all_reduce(x)


@on_ranks(fixture="mortal")
def test_of_ranks_that_disagree_the_error_names_who_is_alone(comm: Communicator) -> None:
    comm.barrier()
    time.sleep(0.02 * comm.rank)  # the last one comes when the first two have found that they differ
    with pytest.raises(
        CommError, match=r"^ranks disagree: rank 1 called all_reduce #2 .* 5 el.*, ranks 0 and 2 .* 4 el"
    ):
        comm.all_reduce(torch.ones(4 + (comm.rank == 1)))


@on_ranks(fixture="mortal")
def test_ctrl_c_answers_within_half_a_second_and_the_others_hear_of_it(comm: Communicator) -> None:
    """Rank 0 waits for ranks that never come; Ctrl-C must answer."""
    if comm.rank != 0:
        time.sleep(0.8)
        with pytest.raises(CommError, match="interrupted"):
            comm.all_reduce(torch.ones(1))
        return
    sent = time.monotonic() + 0.3
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        comm.all_reduce(torch.ones(1))
    assert 0 <= time.monotonic() - sent < 0.5


def test_after_an_error_close_returns_and_says_what_to_do(mortal: Ranks) -> None:
    handle = mortal.start(close_and_init_again)
    mortal.kill(2)
    for rank in (0, 1):
        assert handle.result(rank).startswith("PeerLost, closed in True, then: this communicator is closed; ")
    assert mortal.run(still_works) == [3.0] * 3


def test_a_rank_that_closes_is_named(mortal: Ranks) -> None:
    handle = mortal.start(leave, 1)
    assert handle.result(1) == "closed"
    mortal.kill(1)  # which after that is nothing to ranks that do not wait for it
    for rank in (0, 2):
        with pytest.raises(PeerLost, match=r"rank 1 closed its communicator.* all_reduce"):  # not in send_recv
            handle.result(rank)


def open_files_and_segments() -> tuple[int, int]:
    maps = Path("/proc/self/maps").read_text().splitlines()
    return len(list(Path("/proc/self/fd").iterdir())), sum("memfd:commlib" in line for line in maps)


def once(comm: Communicator) -> None:
    made = comm.split(0)
    made.all_reduce(torch.ones(5))
    kept = made.empty(100)
    made.close()
    kept.fill_(1.0)  # memory outlives its communicator


def names() -> set[str]:
    """Return those in /dev/shm but MPICH's: these ranks have none, and another job of this machine comes and goes."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("mpich_shm_")}  # noqa: PTH208 - names only


@on_ranks(2)
def test_fifty_times_init_and_close_leaves_nothing(comm: Communicator) -> None:
    for _ in range(3):
        once(comm)
    before, named = open_files_and_segments(), names()
    for _ in range(50):
        once(comm)
    assert open_files_and_segments() == before
    assert names() <= named
