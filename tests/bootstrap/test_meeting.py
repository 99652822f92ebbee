"""Ranks of one host that find each other: whoever else comes, and whatever happens to a rank on the way."""

import contextlib
import os
import random
import signal
import socket
import sys
import threading
import time

import pytest

from commlib.bootstrap import door
from commlib.bootstrap.door import Door, Greeting, Place, doors, knock
from commlib.bootstrap.launcher import Identity
from commlib.bootstrap.meeting import meet
from commlib.debug import starting
from commlib.errors import CommTimeout, PeerLost
from tests.bootstrap.processes import NOBODY, caught, in_threads, needs_root, wait_until


@pytest.fixture
def place():
    return Place(f"a test {random.getrandbits(64)}", "the test")


@pytest.fixture(autouse=True)
def no_long_goodbyes(monkeypatch):
    monkeypatch.setattr(door, "LINGER_S", 0.3)


def join(place, rank, size, timeout_s=10.0, delay_s=0.0):
    """Be a rank: meet the others, exchange, leave; return the local rank."""
    time.sleep(delay_s)
    world = meet("test", place, Identity(rank, size), timeout_s)
    with contextlib.closing(world):
        for number in range(3):
            said = [b"%d of %d" % (peer, number) for peer in range(size)]
            assert world.all_gather(said[rank], timeout_s) == said
    return world.local_rank


@pytest.mark.parametrize("late", range(3))
def test_ranks_meet_in_whatever_order_they_start(place, late):
    assert in_threads(*((join, place, rank, 3, 10.0, 0.4 * (rank == late)) for rank in range(3))) == [0, 1, 2]
    assert doors(place) == []


def test_communicators_of_the_same_ranks_never_mix(place):
    def both(rank):
        with contextlib.ExitStack() as closing:
            worlds = [meet("test", place, Identity(rank, 2), 10) for _ in range(2)]
            for world in worlds:
                closing.callback(world.close)
            return [world.all_gather(b"%d" % number, 10) for number, world in enumerate(worlds)]

    assert in_threads((both, 0), (both, 1)) == [[[b"0"] * 2, [b"1"] * 2]] * 2


@pytest.mark.parametrize("missing", [0, 2])
def test_a_rank_that_never_starts_is_named_on_every_other_rank(place, missing):
    results = in_threads(*((join, place, rank, 3, 0.5) for rank in range(3) if rank != missing))
    assert all(result.startswith("CommTimeout") and f"for rank {missing}" in result for result in results), results


@pytest.mark.parametrize("missing", [0, 2])
def test_ranks_say_for_whom_they_wait(place, missing, monkeypatch, caplog):
    monkeypatch.setattr(starting, "FIRST_S", 0.1)
    monkeypatch.setattr(starting, "LOG_S", 0.3)
    in_threads(*((join, place, rank, 3, 1.4) for rank in range(3) if rank != missing))
    for rank in {0, 1, 2} - {missing}:
        mine = [line for line in caplog.messages if line.startswith(f"rank {rank} waits in commlib.init() for rank")]
        assert [f"for rank {missing}" in line for line in mine] == [True] * 3, mine  # after 0.3, 0.6 and 1.2 s


def test_ranks_that_were_told_different_numbers_say_the_same_sentence(place):
    first, second = in_threads((join, place, 0, 2), (join, place, 1, 3))
    assert first == second
    assert first == (
        "ValueError: ranks disagree on their number: rank 1 was told 3, rank 0 2 (the test); start all of them with "
        "the same"
    )


def test_two_processes_with_one_number_are_named_on_every_rank(place, start):
    zero, one, other = start(join, place, 0, 3), start(join, place, 1, 3), start(join, place, 1, 3)
    results = {running.result() for running in (zero, one, other)}
    assert len(results) == 1
    said = results.pop()
    assert "both are rank 1 (the test): two jobs meet at one address, or two ranks have one number" in said
    assert all(str(running.process.pid) in said for running in (one, other))


def test_two_jobs_that_start_at_one_place_say_so_on_every_rank(place, start):
    zeros = [start(join, place, 0, 2), start(join, place, 0, 2)]
    wait_until(lambda: len(doors(place)) == 2)
    time.sleep(0.3)  # each has looked for the other: a rank 1 that comes before may be all that one of them waits for
    results = {caught(join, place, 1, 2), *(running.result() for running in zeros)}
    assert all("both are rank 0 (the test): two jobs meet" in str(result) for result in results), results


def test_a_second_job_does_not_disturb_one_that_is_past_its_start(place, start):
    worlds = in_threads(*((meet, "test", place, Identity(rank, 2), 10) for rank in range(2)))
    second = [start(join, place, rank, 2) for rank in range(2)]
    assert all("(the test): two jobs meet" in running.result() for running in second)
    for world in worlds:
        world.close()


def test_a_rank_that_started_anew_takes_its_place_in_the_next_world(place, start):
    """Rank 1 of the first world has ended; its successor waits for rank 0's next world instead of being an error."""
    first = start(join, place, 1, 2)
    world = meet("test", place, Identity(0, 2), 10)
    for number in range(3):
        world.all_gather(b"0 of %d" % number, 10)
    assert first.result() == 1
    second = start(join, place, 1, 2)
    time.sleep(0.3)
    assert join(place, 0, 2) == 0
    assert second.result() == 1
    world.close()


@pytest.mark.parametrize("stage", ["at the door", "inside"])
def test_a_rank_that_is_killed_while_others_come_is_named_at_once_or_may_come_again(place, start, stage):
    zero = threading.Thread(target=lambda: results.append(caught(join, place, 0, 3)))
    results = []
    zero.start()
    wait_until(lambda: doors(place))
    started = time.monotonic()
    if stage == "at the door":  # let in, but it has not asked
        knock(doors(place)[0], Greeting(1, 3, os.getpid()), 5.0)[1].close()
        assert in_threads((join, place, 1, 3), (join, place, 2, 3)) == [1, 2]
        zero.join()
        assert results == [0]
    else:
        one = start(join, place, 1, 3)
        time.sleep(0.4)
        one.signal(signal.SIGKILL)
        zero.join()
        assert results == ["PeerLost: rank 0: rank 1 ended (test exchange 1)"]
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_rank_0_killed_or_stopped_is_an_error_by_the_deadline(place, start, signum):
    zero = start(join, place, 0, 3)
    wait_until(lambda: doors(place))
    one = threading.Thread(target=lambda: results.append(caught(join, place, 1, 3, 1.5)))
    results = []
    one.start()
    time.sleep(0.3)
    zero.signal(signum)
    two = caught(join, place, 2, 3, 0.5)
    one.join()
    expected = {
        signal.SIGKILL: ("PeerLost: rank 1: rank 0 is gone", "CommTimeout: rank 2 waited 0.5 s for rank 0 at the test"),
        signal.SIGSTOP: ("CommTimeout: rank 1 waited 1.5 s", "CommTimeout: rank 2 waited 0.5 s for rank 0 at the test"),
    }[signum]
    assert (results[0].startswith(expected[0]), two.startswith(expected[1])) == (True, True), (results, two)
    assert signum == signal.SIGKILL or "does not answer; is it stopped?" in two


def test_a_rank_that_stops_before_it_comes_is_late_for_all(place, start):
    one = start(join, place, 1, 3, 10.0, 0.3)
    one.signal(signal.SIGSTOP)
    results = in_threads((join, place, 0, 3, 1.0), (join, place, 2, 3, 1.0))
    assert all(result.startswith("CommTimeout") and "for rank 1" in result for result in results), results


def test_a_child_of_a_rank_that_outlives_it_keeps_nothing_of_it_alive(place, start):
    start(join_fork_and_die, place, 1, 2)
    world = meet("test", place, Identity(0, 2), 10)
    started = time.monotonic()
    with pytest.raises(PeerLost, match="rank 1 ended"):
        world.all_gather(b"", 10)
    assert time.monotonic() - started < 2
    world.close()


def join_fork_and_die(place, rank, size):
    meet("test", place, Identity(rank, size), 10.0)
    if os.fork() == 0:
        time.sleep(3)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def attack(place, how, seconds):
    """Do one thing to every door of a place, again and again; return how often, and all that came back."""
    deadline, held, times, answers = time.monotonic() + seconds, [], 0, b""
    while time.monotonic() < deadline:
        for name in doors(place) * (200 if how == "flood" else 1):
            sock = socket.socket(socket.AF_UNIX)
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.connect(f"\0{name}")
                times += 1
                if how == "garbage":
                    sock.send(
                        random.choice([os.urandom(64), b"[" * 9000 + b"\n", b'{"rank": 1}\n', b"[1, 2]\n", b"[1"])
                    )
                elif how == "join":
                    sock.send(b"[1, 2, 999999]\n")
                    sock.settimeout(0.5)
                    answers += sock.recv(4096)
            held.append(sock)
            if len(held) > 300 or how != "hold":
                held.pop(0).close()
        time.sleep(0 if how == "flood" else 0.002)
    return times, answers


@pytest.mark.parametrize("how", ["hold", "garbage"])
def test_connections_that_say_nothing_or_nonsense_do_not_stall_the_ranks(place, start, how):
    attacker = start(attack, place, how, 1.5)
    assert in_threads(*((join, place, rank, 3, 10.0, 0.5 * (rank == 2)) for rank in range(3))) == [0, 1, 2]
    assert attacker.result()[0] > 5


@needs_root
@pytest.mark.parametrize("how", ["hold", "flood", "garbage", "join"])
def test_another_user_cannot_join_or_stall_a_job_and_is_not_read(place, start, how):
    attackers = [start(attack, place, how, 1.5, user=NOBODY) for _ in range(2)]
    assert in_threads(*((join, place, rank, 3, 10.0, 0.5 * (rank == 2)) for rank in range(3))) == [0, 1, 2]
    for attacker in attackers:
        times, answers = attacker.result()
        assert times > 5 and answers == b""


def open_doors(place, count, backlog):
    held = []
    for _ in range(count):
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].bind(f"\0{place.prefix}{random.getrandbits(64):016x}")
        held[-1].listen(backlog)
    time.sleep(30)


def answer_all(place):
    """A door that lets everyone in."""
    Door._verdict = lambda self, guest: door.Reply("in")
    time.sleep(len([Door(place, 2)]) * 30)


@needs_root
def test_who_knocks_all_the_time_costs_a_running_job_little(place, start):
    worlds = in_threads(*((meet, "test", place, Identity(rank, 2), 10) for rank in range(2)))
    attacker = start(attack, place, "flood", 1.5, user=NOBODY)
    assert attacker.result()[0] <= door.BACKLOG + 1.5 / door.FULL_NAP_S + 10
    for world in worlds:
        world.close()


@needs_root
def test_doors_of_another_user_are_passed_by(place, start):
    start(open_doors, place, 200, 0, user=NOBODY)
    start(answer_all, place, user=NOBODY)
    wait_until(lambda: len(doors(place)) == 201)
    own = Door(place, 2)
    assert [doors(place)[0] for _ in range(5)] == [own._name] * 5, "of many, this user's come first"
    own.close()
    assert in_threads((join, place, 0, 2, 10.0, 0.3), (join, place, 1, 2)) == [0, 1]


@needs_root
def test_ranks_of_two_users_are_told_that_they_must_be_of_one(place, start):
    start(join, place, 0, 2, user=NOBODY)
    wait_until(lambda: doors(place))
    with pytest.raises(CommTimeout, match=f"only a process of user {NOBODY} serves there; all ranks must run as one"):
        join(place, 1, 2, 0.5)


def test_a_hundred_meetings_leave_nothing_behind(place):
    def held():
        return len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208

    in_threads((join, place, 0, 2), (join, place, 1, 2))
    before = held()
    for _ in range(100):
        assert in_threads((join, place, 0, 2), (join, place, 1, 2)) == [0, 1]
    assert held() <= before


def test_a_world_that_nobody_closes_leaves_no_door_open(place):
    worlds = in_threads(*((meet, "test", place, Identity(rank, 2), 10) for rank in range(2)))
    assert len(doors(place)) == 1
    for world in worlds:
        world._channel.close()
    del world, worlds
    wait_until(lambda: not doors(place))


def test_without_the_kernels_list_of_sockets_ranks_say_what_to_do(place, monkeypatch, tmp_path):
    monkeypatch.setattr(door, "UNIX_SOCKETS", tmp_path / "nothing")
    for result in in_threads((join, place, 0, 2, 1.0), (join, place, 1, 2, 1.0)):
        assert "Unsupported" in result and "start them with `commlib run`" in result


def test_meeting_needs_no_torch():
    import subprocess

    script = "import sys, commlib.bootstrap.meeting; print({'torch', 'mpi4py', 'commlib._native'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
