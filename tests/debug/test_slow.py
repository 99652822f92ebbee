"""commlib debug --slow: a late rank is named, even traffic has none, and other tools read its dumps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from commlib.communicator import Communicator
from commlib.debug import jobs
from commlib.debug.jobs import Job, look
from commlib.debug.record import records_of
from commlib.errors import CommError
from commlib.tools.cli.debug import debug
from commlib.tools.debug.flight import flights
from commlib.tools.debug.slow import PROGRAM, RankTime, Slowness, _late, blamed, sentences, watch
from commlib.tools.testing import Handle, Ranks
from tests.debug.test_debug import wait_for

WATCH_S = 1.0
LARGE = 1 << 16  # elements


def nap(comm: Communicator | None = None) -> None:
    time.sleep(0.1)  # the larger part of a turn also where ranks wait for a core


def work(comm: Communicator, path: str, late: int, count: int) -> None:
    """Make calls until a file is gone; one rank may come late to each."""
    x, more = torch.ones(count), torch.ones(1)
    while more.item():
        more.fill_(os.path.exists(path))  # noqa: PTH110 - quicker
        comm.all_reduce(more, "min")
        if comm.rank == late:
            nap()
        comm.all_reduce(x, "max")


class Working:
    """Ranks at work, until the block ends."""

    def __init__(self, ranks: Ranks, path: Path, late: int = -1, count: int = LARGE) -> None:
        self._path = path
        path.touch()
        ranks.run(nap)  # with what they import first behind them
        self._handle: Handle = ranks.start(work, str(path), late, count)
        self.records = [record for pid in ranks.pids for record in records_of(pid)]

    def __enter__(self) -> Working:
        time.sleep(0.1)
        return self

    def __exit__(self, *error: object) -> None:
        self._path.unlink()
        self._handle.join()

    def watched(self) -> tuple[Job, Slowness]:
        return watch(self.records, WATCH_S)


@pytest.mark.parametrize(("waits", "late"), [(0.2, [0]), (0.5, [])])
def test_a_rank_that_waits_as_long_as_others_for_it_is_not_late(waits: float, late: list[int]) -> None:
    ranks = [
        RankTime(rank, rank, 0.0, 0.0, waited, keeps, 1) for rank, waited, keeps in ((0, waits, 0.5), (1, 0.5, 0.0))
    ]
    assert [one.rank for one in _late(ranks, [[((1, 7), 0)]] * 100)] == late


def test_a_job_may_end_meanwhile(three: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    go.touch()
    three.run(nap)
    handle = three.start(work, str(go), -1, LARGE)

    def end(seconds: float = 0.0) -> None:
        go.unlink(missing_ok=True)
        handle.join()
        three.close()

    monkeypatch.setattr(jobs, "time", SimpleNamespace(**{**vars(time), "sleep": end}))  # between the two looks
    shown = CliRunner().invoke(debug, [str(three.pids[0])], standalone_mode=False)
    assert (shown.return_value, "the job ended meanwhile" in shown.output) == (0, True)


def test_a_rank_that_comes_late_to_each_call_is_named_with_what_it_is_in_by_the_command_too(live, tmp_path) -> None:
    number = str(live.pids[0])
    options = f"{number} --slow --time {WATCH_S} --json -o {tmp_path}/slow.md --dump {tmp_path}".split()
    with Working(live, tmp_path / "go", late=1) as working:
        job, slow = working.watched()
        (late,) = slow.late
        text, *_ = sentences(working.records, job, slow)
        printed = CliRunner().invoke(debug, options, standalone_mode=False)
    assert late.rank == 1
    assert text.startswith("rank 1 is late: the others wait for it ")
    assert f"then process {live.pids[1]} is in test_slow.py:" in text
    assert "in nap" in text
    assert late.program > max(one.program for one in slow.ranks if one is not late)
    assert max(one.waits for one in slow.ranks) > 0.1
    assert "rank 1 is late" in (tmp_path / "slow.md").read_text(encoding="utf-8")
    data = json.loads(printed.output)
    (job,) = data["jobs"]
    assert printed.return_value == 3
    assert (data["schema"], [late["rank"] for late in job["late"]]) == ("commlib.debug.slow", [1])
    assert {path.name for path in (tmp_path / number / "flight").iterdir()} == {"rank_0", "rank_1", "rank_2"}


@pytest.mark.parametrize("count", [8, LARGE])
def test_even_traffic_has_no_late_rank(live: Ranks, tmp_path: Path, count: int) -> None:
    with Working(live, tmp_path / "go", count=count) as working:
        looks = [working.watched()[1] for _ in range(3)]
    assert any(slow.late == [] for slow in looks)  # on few cores one may be, for a while
    for one in looks[0].ranks:
        assert one.program + one.moves + one.waits == pytest.approx(1)


def leave_out_a_call(comm: Communicator) -> None:
    for _ in range(300):
        comm.all_reduce(torch.ones(8))
    part = comm.split(comm.rank % 2)
    assert part is not None
    part.all_reduce(torch.ones(4))
    if comm.rank == 0:
        comm.send(torch.ones(3), 1)
    if comm.rank == 1:
        comm.recv(torch.ones(3), 0)
    part.close()
    try:
        if comm.rank == 2:
            time.sleep(2.0)
        comm.all_reduce(torch.ones(10))
    except CommError:
        pass


def analysed(job: Job, folder: Path) -> str:
    """Return what torch's own analyser says."""
    for rank, flight in flights(job).items():
        (folder / f"rank_{rank}").write_bytes(flight)
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


@pytest.mark.slow
def test_torchs_analyser_names_the_rank_that_left_out_a_call(three: Ranks, tmp_path: Path) -> None:
    handle = three.start(leave_out_a_call)
    wait_for(three, "missing", "ranks 0 and 1 wait for it")
    text = analysed(look(three.pids), tmp_path)
    assert "Not all ranks joining collective" in text
    assert "missing ranks: {2}" in text
    assert "collective: nccl:all_reduce\n" in text
    handle.join()


def test_who_waits_itself_is_not_to_blame_but_whom_it_waits_for() -> None:
    slot = SimpleNamespace(peers=[SimpleNamespace(pid=pid) for pid in (10, 11, 12)])
    job: Any = SimpleNamespace(ranks={peer.pid: SimpleNamespace(slot=lambda _: slot) for peer in slot.peers})
    for peers, wanted in (((1, 2, None), [12, 12]), ((1, 0, 0), [11, 10, 10])):  # of a ring, everyone's own
        looks = {(10 + at, 1): PROGRAM if peer is None else peer for at, peer in enumerate(peers)}
        assert [pid for _, pid in blamed(job, looks)] == wanted
