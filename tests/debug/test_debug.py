"""commlib debug: a live job says which rank keeps it, in which call, and what that rank does instead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from commlib.cli.debug import debug
from commlib.communicator import Communicator
from commlib.debug import Finding, answer, findings_of, look
from commlib.debug.record import records_of
from commlib.debug.stacks import ask
from commlib.errors import CommError, CommTimeout, PeerLost
from commlib.testing import Ranks

ROOT = Path(__file__).parents[2]
QUICK_S = 0.05  # a wait that counts here
LONG_S = 20.0


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with Ranks(3, backend="shm", timeout_s=LONG_S, max_bytes=1 << 20) as ranks:
        yield ranks


def stay_away(comm: Communicator, seconds: float) -> None:
    comm.all_reduce(torch.ones(8))
    if comm.rank == 2:
        time.sleep(seconds)
    comm.all_reduce(torch.ones(14336, dtype=torch.bfloat16))


def wait_for(ranks: Ranks, kind: str, said: str = "") -> Finding:
    """Look until there is such a finding, which comes first; on a busy machine others come before it."""
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        found = findings_of(look(ranks.pids), stuck_s=QUICK_S)
        if found and found[0].kind == kind and said in found[0].text:
            return found[0]
    raise AssertionError(f"no finding of kind {kind}: {found}")


def test_a_rank_that_has_not_come_is_named_with_the_call_and_what_it_is_in(three: Ranks) -> None:
    handle = three.start(stay_away, 1.5)
    found = wait_for(three, "missing", "ranks 0 and 1 wait for it")
    assert found.ranks == (2,)
    assert "rank 2 has not made all_reduce #2 (bfloat16, 14336 elements, sum)" in found.text
    (stack,) = ask({three.pids[2]: ()})[three.pids[2]]
    assert "test_debug.py" in str(stack)
    assert "in stay_away" in str(stack)
    handle.join()
    three.restart()


def test_a_record_of_another_version_is_told(three: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commlib.debug.record.VERSION", 1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert "runs another version of commlib" in CliRunner().invoke(debug, [str(three.pids[0])]).output
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def disagree(comm: Communicator) -> str:
    comm.barrier()
    try:
        if comm.rank == 1:
            comm.broadcast(torch.ones(3), 0)
        else:
            comm.all_reduce(torch.ones(3))
            comm.all_reduce(torch.ones(3))
    except CommError as error:
        return str(error)
    return ""


def test_of_a_call_that_differs_the_odd_rank_is_named(three: Ranks) -> None:
    three.run(disagree)
    found = findings_of(look(three.pids))[0]
    assert (found.kind, found.ranks) == ("differs", (1,))
    assert "in its operation: rank 1 made broadcast #2 (float32, 3 elements, root 0); ranks 0 and 2 made" in found.text
    three.restart()


def test_a_stopped_rank_is_said_to_be_stopped(three: Ranks) -> None:
    handle = three.start(stay_away, 0.3)
    os.kill(three.pids[2], signal.SIGSTOP)
    try:
        found = wait_for(three, "missing", "rank 2 has not made")
        assert found.ranks == (2,)
        assert look(three.pids).ranks[three.pids[2]].process.halted.startswith("stopped by a signal")
    finally:
        os.kill(three.pids[2], signal.SIGCONT)
    handle.join()
    three.restart()


def late(comm: Communicator) -> str:
    comm.barrier()
    if comm.rank == 1:
        time.sleep(3.0)
    try:
        comm.all_reduce(torch.ones(3))
    except CommTimeout as error:
        return str(error)
    return ""


def test_a_timeout_brings_the_same_text() -> None:
    with Ranks(2, backend="shm", timeout_s=0.5, max_bytes=1 << 20) as ranks:
        for said in ranks.run(late):
            assert "rank 1 has not made all_reduce #2 (float32, 3 elements, sum): rank 0 waits for it" in said
            assert "test_debug.py" in said


def calls_of(pid: int) -> int:
    (record,) = records_of(pid)
    entered = max(slot.entered for slot in record.slots())
    record.close()
    return entered


def lose(comm: Communicator) -> str:
    try:
        while True:
            comm.all_reduce(torch.ones(3))
    except PeerLost as error:
        return str(error)


def test_the_loss_of_a_rank_brings_what_it_was_last_seen_in(three: Ranks) -> None:
    victim = three.pids[2]
    before = calls_of(victim)
    handle = three.start(lose)
    while calls_of(victim) < before + 100:
        time.sleep(0.01)
    three.kill(2)
    assert f"rank 2 (process {victim}) has ended; it was last seen in all_reduce #" in handle.result(0)
    three.restart()


def test_when_a_rank_fails_the_job_says_what_it_was_last_seen_in(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import os, time, torch, commlib\n"
        "comm = commlib.init(backend='shm', max_bytes=1 << 20)\n"
        "comm.barrier()\n"
        "if comm.rank == 1:\n    time.sleep(0.5)\n    os.kill(os.getpid(), 9)\n"
        "comm.all_reduce(torch.ones(3))\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "commlib", "run", "-n", "2", str(script)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stderr
    assert "commlib: rank 1 was killed by SIGKILL; ending the other ranks\n" in said
    assert "has ended; it was last seen in barrier #1" in said  # by the launcher, or by rank 0 if that was quicker


def run_threads(comm: Communicator, seconds: float) -> None:
    """Wait for rank 2 with threads beside that run Python: what they are in comes and goes all the time."""
    over = time.monotonic() + seconds

    def down(n: int) -> int:
        return down(n - 1) + 1 if n else 0

    def keep_busy() -> None:
        while time.monotonic() < over:
            down(400)

    threads = [threading.Thread(target=keep_busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    if comm.rank == 2:
        threads[0].join()
    comm.barrier()
    threads[1].join()


@pytest.mark.slow
def test_a_rank_whose_threads_run_python_is_not_hurt(three: Ranks) -> None:
    handle = three.start(run_threads, 3.0)
    wait_for(three, "missing")
    answers, until = 0, time.monotonic() + 2.0
    while time.monotonic() < until:
        job = look(three.pids)
        job.ask_stacks(three.pids)
        answers += sum(bool(rank.stacks) for rank in job.ranks.values())
    handle.join()
    assert answers


# Not of calls that differ: where only two of three ranks have come to one, nobody can say whose is wrong.
@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["loop,launcher", "SIGSTOP,SIGKILL"])
def test_random_faults_are_told(kinds: str) -> None:
    command = [sys.executable, "benchmarks/hangs.py", "--faults", "4", "--kinds", kinds, "--seed", "5"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_faults_of_ranks_that_replay_graphs_are_told() -> None:
    kinds = "replays another graph,loops"
    command = [sys.executable, "benchmarks/hangs.py", "--graphs", "--faults", "2", "--kinds", kinds]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_launcher_ends_its_ranks_even_if_their_records_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(pid: int) -> None:
        raise OSError(f"records of {pid}")

    monkeypatch.setattr(answer, "jobs_here", broken)
    assert answer.explained_below(os.getpid()) == []
