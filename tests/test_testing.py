import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commlib.errors import PeerLost
from commlib.tools.testing import RankError, Ranks
from tests.test_launch import wait_until_gone

ROOT = Path(__file__).parents[1]


class Comm:
    """As much of a communicator as Ranks needs."""

    def __init__(self, world, ranks, label=""):
        self.world, self.ranks, self.label = world, ranks, label
        self.rank, self.size = ranks.index(world.rank), len(ranks)
        world.all_gather(b"", 20)

    def split(self, color, key):
        colors = self.world.all_gather(bytes([color]), 20)
        return Comm(self.world, [rank for rank in self.ranks if colors[rank] == bytes([color])])

    def close(self):
        pass


def create(world, *, label=""):
    return Comm(world, list(range(world.size)), label)


def who(comm, offset):
    return comm.rank + offset, comm.size, os.getpid()


def read(comm, name):
    return os.environ.get(name), comm.label


def fail_on_1(comm):
    if comm.rank == 1:
        raise LookupError("rank 1 has a bug")
    return comm.rank


def wait_for_1(comm):
    if comm.rank == 1:
        time.sleep(60)
    comm.world.all_gather(b"", 20)


def hang(comm):
    time.sleep(60)


def exit_now(comm):
    os._exit(4)


def cpu_seconds(comm):
    return time.process_time()


def until_interrupted(comm):
    try:
        time.sleep(10)
    except KeyboardInterrupt:
        return "interrupted"


def unpicklable(comm):
    return lambda: None


@pytest.fixture(scope="module")
def ranks():
    with Ranks(3, create=create, label="mine") as ranks:
        yield ranks


def test_values_come_back_in_rank_order_from_processes_that_stay(ranks):
    first = ranks.run(who, 10)
    assert [value[:2] for value in first] == [(10, 3), (11, 3), (12, 3)]
    assert [value[2] for value in first] == ranks.pids
    assert ranks.run(who, 10) == first


def test_a_smaller_world_is_split_off_once_and_reused(ranks):
    for _ in range(2):
        assert [value[:2] for value in ranks.run(who, 0, world=2)] == [(0, 2), (1, 2)]
    assert [value[:2] for value in ranks.run(who, 0, world=1)] == [(0, 1)]
    assert [value[:2] for value in ranks.run(who, 0)] == [(0, 3), (1, 3), (2, 3)]


def test_a_failure_is_told_with_its_traceback_and_the_next_run_is_sound(ranks):
    with pytest.raises(RankError, match=r"rank 1 failed:(.|\n)*in fail_on_1(.|\n)*rank 1 has a bug") as caught:
        ranks.run(fail_on_1)
    assert list(caught.value.errors) == [1]
    assert isinstance(caught.value.errors[1], LookupError)
    assert len(ranks.run(who, 0)) == 3


def test_ranks_see_todays_environment_and_their_options(ranks, monkeypatch):
    monkeypatch.setenv("COMMLIB_ISA", "v3")
    ranks.restart()
    assert ranks.run(read, "COMMLIB_ISA") == [("v3", "mine")] * 3


def test_a_killed_rank_is_named_to_the_survivors_at_once(ranks):
    handle = ranks.start(wait_for_1)
    time.sleep(0.05)
    victim = ranks.pids[1]
    started = time.monotonic()
    ranks.kill(1)
    for rank in (0, 2):
        with pytest.raises(PeerLost, match=f"rank {rank}: rank 1 died"):
            handle.result(rank)
    assert time.monotonic() - started < 1
    with pytest.raises(RankError, match="rank 1 was killed by SIGKILL"):
        handle.result(1)
    assert victim not in ranks.pids and len(ranks.pids) == 2
    assert [value[0] for value in ranks.start(who, 0).join()] == [0, 2]
    assert len(ranks.run(who, 0)) == 3


def test_a_hang_ends_at_the_deadline_with_the_stack(ranks, monkeypatch):
    monkeypatch.setattr(ranks, "deadline_s", 0.3)
    with pytest.raises(RankError, match=r"rank 2 did not return in time(.|\n)*in hang"):
        ranks.run(hang)
    monkeypatch.undo()
    assert len(ranks.run(who, 0)) == 3


def test_a_rank_that_exits_is_told_with_its_code(ranks):
    with pytest.raises(RankError, match="rank 0 exited with code 4"):
        ranks.run(exit_now)


def test_a_value_that_cannot_be_sent_is_a_failure(ranks):
    with pytest.raises(RankError, match="pickle"):
        ranks.run(unpicklable)


def test_idle_ranks_use_no_cpu(ranks):
    before = ranks.run(cpu_seconds)
    time.sleep(0.3)
    assert all(now - then < 0.02 for now, then in zip(ranks.run(cpu_seconds), before, strict=True))


def test_ctrl_c_reaches_the_function_and_nothing_else(ranks):
    for pid in ranks.pids:
        os.kill(pid, signal.SIGINT)
    handle = ranks.start(until_interrupted)
    time.sleep(0.1)
    os.kill(ranks.pids[0], signal.SIGINT)
    assert handle.result(0) == "interrupted"
    ranks.restart()


def test_no_rank_outlives_a_killed_test_process():
    script = (
        "import time; from commlib.tools.testing import Ranks; from tests.test_testing import create, hang\n"
        "ranks = Ranks(2, create=create); ranks.restart(); ranks.start(hang)\n"
        "print(*ranks.pids, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    process.kill()
    process.communicate()
    assert wait_until_gone(pids) == []
