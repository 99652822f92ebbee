"""commlib debug: a live job, also on several hosts, says which rank keeps it, in which call, and what that one does."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from commlib.communicator import Communicator
from commlib.debug.findings import Finding, findings_of
from commlib.debug.jobs import look
from commlib.debug.record import records_of
from commlib.debug.stacks import ask
from commlib.debug.starting import Waiting
from commlib.errors import CommError, CommTimeout, PeerLost
from commlib.tools.cli.debug import debug
from commlib.tools.debug import host, page
from commlib.tools.debug.flight import flights
from commlib.tools.debug.host import starting_here
from commlib.tools.testing import Handle, Ranks
from tests import hosts

ROOT = Path(__file__).parents[2]
QUICK_S = 0.05  # a wait that counts here
LONG_S = 20.0


def stay_away(comm: Communicator, seconds: float = LONG_S, rank: int = 2) -> None:
    comm.all_reduce(torch.ones(8))
    with suppress(KeyboardInterrupt):
        if comm.rank == rank:
            time.sleep(seconds)
    comm.all_reduce(torch.ones(14336, dtype=torch.bfloat16))


def come(ranks: Ranks, handle: Handle, rank: int = 2) -> None:
    """Have the rank that stays away come, and all return."""
    os.kill(ranks.pids[rank], signal.SIGINT)
    handle.join()


def wait_for(ranks: Ranks, kind: str, text: str = "") -> Finding:
    """Look until there is such a finding, which comes first; on a busy machine others come before it."""
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        findings = findings_of(look(ranks.pids), stuck_s=QUICK_S)
        if findings and findings[0].kind == kind and text in findings[0].text:
            return findings[0]
    raise AssertionError(f"no finding of kind {kind}: {findings}")


def test_a_rank_that_has_not_come_is_named_with_the_call_and_what_it_is_in(three: Ranks) -> None:
    handle = three.start(stay_away)
    late = "rank 2 has not made all_reduce #2 (bfloat16, 14336 elements, sum): ranks 0 and 1 wait for it"
    assert wait_for(three, "missing", late).ranks == (2,)
    (stack,) = ask({three.pids[2]: ()})[three.pids[2]]
    assert "test_debug.py" in str(stack)
    assert "in stay_away" in str(stack)
    job = look(three.pids)
    (slot,) = job.ranks[three.pids[2]].slots
    job.ranks[three.pids[2]].slots[:] = [replace(slot, entered=2)]  # as if it were there, and did not wait
    assert findings_of(job, stuck_s=QUICK_S)[0].text.startswith("rank 2 is in all_reduce #2")
    come(three, handle)
    job = look(three.pids)
    slots = job.ranks[three.pids[0]].slots
    slots[:] = [replace(slots[0], calls={at: call for at, call in slots[0].calls.items() if call.number > 1})]
    for dump in flights(job).values():  # what one rank has no more, no rank's has
        assert [entry["collective_seq_id"] for entry in pickle.loads(dump)["entries"]] == [2]


def test_a_record_of_another_version_is_named(three: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commlib.debug.record.VERSION", 1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert "runs another version of commlib" in CliRunner().invoke(debug, [str(three.pids[0])]).output
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def disagree(comm: Communicator) -> None:
    comm.barrier()
    with pytest.raises(CommError):
        if comm.rank == 1:
            comm.broadcast(torch.ones(3), 0)
        else:
            comm.all_reduce(torch.ones(3))
            comm.all_reduce(torch.ones(3))


def test_of_a_call_that_differs_the_odd_rank_is_named(three: Ranks) -> None:
    three.run(disagree)
    finding = findings_of(look(three.pids))[0]
    assert (finding.kind, finding.ranks) == ("differs", (1,))
    assert (
        "in its operation: rank 1 made broadcast #2 (float32, 3 elements, root 0); ranks 0 and 2 made" in finding.text
    )


def late(comm: Communicator) -> str:
    comm.barrier()
    if comm.rank == 1:
        time.sleep(2.0)
    with pytest.raises(CommTimeout) as raised:
        comm.all_reduce(torch.ones(3))
    return str(raised.value)


def test_a_timeout_brings_the_same_text() -> None:
    with Ranks(2, backend="shm", timeout_s=0.5, max_bytes=1 << 20) as ranks:
        for text in ranks.run(late):
            assert "rank 1 has not made all_reduce #2 (float32, 3 elements, sum): rank 0 waits for it" in text
            assert "test_debug.py" in text


def calls_of(pid: int) -> int:
    (record,) = records_of(pid)
    entered = max(slot.entered for slot in record.slots())
    return entered


def lose(comm: Communicator) -> str:
    with pytest.raises(PeerLost) as raised:
        while True:
            comm.all_reduce(torch.ones(3))
    return str(raised.value)


def test_the_loss_of_a_rank_brings_what_it_was_last_seen_in(three: Ranks) -> None:
    victim = three.pids[2]
    before = calls_of(victim)
    handle = three.start(lose)
    while calls_of(victim) < before + 100:
        time.sleep(0.01)
    three.kill(2)
    assert f"rank 2 (process {victim}) has ended; it was last seen in all_reduce #" in handle.result(0)


def run_threads(comm: Communicator, seconds: float) -> None:
    """Wait for rank 2 with other threads that run Python: what they are in comes and goes all the time."""
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
@pytest.mark.parametrize(
    ("kinds", "options"),
    [
        ("loop,launcher", ("--faults", "4", "--seed", "5")),
        ("SIGSTOP,SIGKILL", ("--faults", "4", "--seed", "5")),
        ("replays another graph,loops", ("--graphs", "--faults", "2")),
    ],
)
def test_random_faults_are_named(kinds: str, options: tuple[str, ...]) -> None:
    command = [sys.executable, "benchmarks/hangs.py", "--kinds", kinds, *options]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_launcher_ends_its_ranks_even_if_their_records_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(pid: int) -> None:
        raise OSError(f"records of {pid}")

    monkeypatch.setattr(page, "jobs_here", broken)
    assert page.explained_below(os.getpid()) == []


def test_the_command_says_it_in_words_as_json_and_in_files(three: Ranks, tmp_path: Path) -> None:
    handle = three.start(stay_away)
    wait_for(three, "missing")
    time.sleep(1.0)  # from there on the command takes a wait seriously
    shown = CliRunner().invoke(debug, [str(three.pids[0]), "--dump", str(tmp_path)], standalone_mode=False)
    assert shown.return_value == 3
    assert "3 of 3 ranks here" in shown.output
    assert "in stay_away; it sleeps" in " ".join(shown.output.split())
    number = str(three.pids[0])
    assert {path.name for path in (tmp_path / number).iterdir()} >= {"page.txt", "job.json", f"record.{number}"}
    printed = CliRunner().invoke(debug, [number, "--json", "-o", str(tmp_path / "x.md")], standalone_mode=False).output
    (job,) = json.loads(printed)["jobs"]
    assert (job["findings"][0]["ranks"], job["ranks"], len(printed) < 4000) == ([2], [0, 1, 2], True)
    assert "rank 2 has not made all_reduce #2" in (tmp_path / "x.md").read_text(encoding="utf-8")
    saved = json.loads((tmp_path / number / "job.json").read_text(encoding="utf-8"))
    assert [rank["number"] for rank in saved["records"]] == [0, 1, 2]
    come(three, handle)


def test_a_rank_that_waits_in_init_is_shown() -> None:
    with Waiting(0, 2, 300.0) as waiting:
        waiting.tell("rank 1")
        shown = CliRunner().invoke(debug, [str(os.getpid())], standalone_mode=False)
        data = CliRunner().invoke(debug, [str(os.getpid()), "--json"], standalone_mode=False).output
    text = r"rank 0 of 2 waits in commlib\.init\(\) for rank 1: \d s of 300 s"
    assert re.search(text, " ".join(shown.output.split()))
    assert [rank["waits_for"] for rank in json.loads(data)["in_init"]] == ["rank 1"]
    assert starting_here(os.getpid()) == []


def test_a_wait_in_init_is_logged_after_ten_seconds_and_each_time_that_it_has_doubled(monkeypatch, caplog) -> None:
    now, due = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "monotonic_ns", lambda: int(now[0] * 1e9))
    with Waiting(1, 2, 300.0) as waiting:
        for second in range(90):
            now[0] = 100.0 + second
            if waiting.due():
                due.append(second)
                waiting.tell("rank 0")
    assert due == [1, 10, 20, 40, 80]
    assert "rank 1 waits in commlib.init() for rank 0: 10 s of 300 s" in caplog.text
    assert len(caplog.messages) == 4


def test_without_a_job_the_command_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        shown = CliRunner().invoke(debug, [str(other.pid)])
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        foreign = CliRunner().invoke(debug, [str(other.pid)])
        other.kill()
    assert shown.exit_code == 1
    assert f"neither process {other.pid} nor a process below it has a communicator, or waits" in shown.output
    assert f"process {other.pid} belongs to another user (number {os.getuid()})" in foreign.output
    assert f"there is no process {other.pid}" in CliRunner().invoke(debug, [str(other.pid)]).output


@pytest.mark.parametrize("rank", [1, 3])
def test_ranks_elsewhere_are_named(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ranks(4, create=hosts.create, hosts="aabb", backend="torch", timeout_s=LONG_S) as ranks:
        monkeypatch.setattr(host, "processes", lambda wanted=None: iter(ranks.pids[:2]))
        here = look(ranks.pids[:2])
        assert [one.elsewhere for one in here.ranks.values()] == [False, False, True, True]
        handle = ranks.start(stay_away, LONG_S, rank)
        time.sleep(1.5)
        shown = CliRunner().invoke(debug, [str(ranks.pids[0])], standalone_mode=False)
        text = " ".join(shown.output.split())
        assert shown.return_value == 3
        assert "2 of 4 ranks here" in text
        assert "what ranks 2 and 3 do is not known here; run commlib debug on their hosts" in text
        assert ("rank 1 has not made all_reduce #2" in text) == (rank == 1)
        come(ranks, handle, rank)
