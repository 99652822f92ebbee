"""Ranks of tests: what goes wrong on one is told with its rank, and the next run is sound."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from commlib.communicator import Communicator
from commlib.errors import PeerLost
from commlib.tools.testing import RankError, Ranks
from tests.pages import ROOT
from tests.test_launch import wait_until_gone


def rank_of(comm: Communicator) -> int:
    return comm.rank


def fail_on_1(comm: Communicator) -> None:
    if comm.rank == 1:
        raise LookupError("rank 1 has a bug")


def hang(comm: Communicator) -> None:
    time.sleep(60 if comm.rank == 1 else 0)
    comm.barrier()


def exit_now(comm: Communicator) -> None:
    os._exit(4)


def unpicklable(comm: Communicator) -> Any:
    return lambda: None


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(3, backend="shm", max_bytes=0) as ranks:
        yield ranks


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (fail_on_1, "rank 1 failed:(.|\\n)*in fail_on_1(.|\\n)*rank 1 has a bug"),
        (hang, "rank 1 did not return in time(.|\\n)*in hang"),
        (exit_now, "rank 0 exited with code 4"),
        (unpicklable, "pickle"),
    ],
)
def test_what_goes_wrong_is_told_and_the_next_run_is_sound(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, function: Callable[[Communicator], Any], told: str
) -> None:
    assert ranks.run(rank_of) == [0, 1, 2]
    monkeypatch.setattr(ranks, "deadline_s", 0.5 if function is hang else 60.0)
    with pytest.raises(RankError, match=told) as caught:
        ranks.run(function)
    if function is fail_on_1:
        assert [type(error) for error in caught.value.errors.values()] == [LookupError]
    monkeypatch.undo()
    assert ranks.run(rank_of) == [0, 1, 2]


def test_a_killed_rank_is_named_to_the_survivors(ranks: Ranks) -> None:
    ranks.run(rank_of)
    handle, victim = ranks.start(hang), ranks.pids[1]
    ranks.kill(1)
    for rank in (0, 2):
        with pytest.raises(PeerLost, match="rank 1"):
            handle.result(rank)
    with pytest.raises(RankError, match="rank 1 was killed by SIGKILL"):
        handle.result(1)
    assert victim not in ranks.pids and len(ranks.pids) == 2
    assert ranks.start(rank_of).join() == [0, 2]
    assert ranks.run(rank_of) == [0, 1, 2]


def test_no_rank_outlives_a_killed_test_process() -> None:
    script = (
        "import time; from commlib.tools.testing import Ranks; from tests.test_testing import hang\n"
        "ranks = Ranks(2, backend='shm', max_bytes=0); ranks.restart(); ranks.start(hang)\n"
        "print(*ranks.pids, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    process.kill()
    process.communicate()
    assert wait_until_gone(pids) == []
