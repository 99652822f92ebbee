"""COMMLIB_METRICS: each rank writes what it did in the text format of Prometheus, whole at any time."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from commlib.communicator import Communicator
from commlib.debug import metrics
from commlib.debug.jobs import look
from commlib.debug.metrics import metrics_text
from commlib.tools.testing import Ranks
from tests.on_ranks import on_ranks

PAUSE_S = 0.5
SAMPLE = re.compile(r'commlib_([a-z_]+)\{((?:[a-z]+="[^"]*",?)+)\} ([0-9.e+-]+)')


def samples(text: str) -> dict[tuple[str, str], float]:
    """Read the format; a line that is none of it fails."""
    values = {}
    for line in text.splitlines():
        if not line.startswith("# HELP ") and not line.startswith("# TYPE "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            values[match[1], match[2]] = float(match[3])
    return values


def work(comm: Communicator) -> str:
    time.sleep(PAUSE_S)
    for _ in range(3):
        comm.all_reduce(torch.ones(1 << 15))
    comm.barrier()
    job = look([os.getpid()])
    return metrics_text(job, job.ranks[os.getpid()])


def test_calls_bytes_and_waits_are_counted(shm_ranks: Ranks) -> None:
    before, after = (shm_ranks.run(work)[1] for _ in range(2))
    old, new = samples(before), samples(after)
    deltas = {key: new[key] - old.get(key, 0) for key in new if 'ranks="4"' in key[1] and 'rank="1"' in key[1]}
    named = {name: sum(value for key, value in deltas.items() if key[0] == name) for name, _ in deltas}
    assert named["large_calls_total"] == 3
    assert named["large_bytes_total"] == 3 * 4 << 15
    assert 0 < named["large_seconds_total"] < PAUSE_S  # of the calls, not between them
    assert named["calls_total"] == 4
    assert named["wait_seconds_total"] >= 0
    assert any('peer="3"' in labels for _, labels in deltas)
    assert after.count("# TYPE") == len({name for name, _ in new})


@on_ranks()
def test_peers_in_a_part_have_the_numbers_that_they_have_in_the_job(comm: Communicator) -> None:
    with comm.split(comm.rank % 2) as part:
        part.barrier()
        job = look([os.getpid()])
        text = metrics_text(job, job.ranks[os.getpid()])
    assert re.findall('commlib_waits_total.*peer="(.)"', text)[-1] == str((comm.rank + 2) % 4)


@pytest.mark.slow
def test_a_job_leaves_a_file_for_each_rank(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import torch, commlib\n"
        "comm = commlib.init(backend='shm', max_bytes=1 << 20)\n"
        "for _ in range(5):\n    comm.all_reduce(torch.ones(1 << 15))\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "commlib", "run", "-n", "2", str(script)]
    set_to = {**os.environ, "COMMLIB_METRICS": str(tmp_path / "commlib.prom")}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=set_to)
    assert ran.returncode == 0, ran.stderr
    assert sorted(path.name for path in tmp_path.glob("*.prom")) == ["commlib.0.prom", "commlib.1.prom"]
    assert not list(tmp_path.glob(".commlib*"))
    values = samples((tmp_path / "commlib.1.prom").read_text(encoding="utf-8"))
    assert {value for (name, labels), value in values.items() if name == "large_calls_total"} == {5}


@pytest.mark.parametrize("named", ["/proc/missing/commlib.prom", "/", "."])
def test_a_place_that_cannot_be_written_is_one_warning_until_it_can(
    shm_ranks: Ranks, named: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    job = look(shm_ranks.pids)
    monkeypatch.setenv("COMMLIB_METRICS", named)
    monkeypatch.setattr(metrics, "_FAILED", {os.getpid(): False})
    monkeypatch.setattr(metrics, "look", lambda pids: job)
    job.ranks[os.getpid()] = job.ranks[shm_ranks.pids[0]]
    assert not metrics.write()
    assert not metrics.write()  # at the end of the process
    assert caplog.text.count(f"COMMLIB_METRICS={named}: the file of rank 0 cannot be written: ") == 1
    monkeypatch.setenv("COMMLIB_METRICS", str(tmp_path / "commlib.prom"))
    assert metrics.write()  # there is room again
    monkeypatch.setenv("COMMLIB_METRICS", named)
    assert not metrics.write()
    assert caplog.text.count("the file of rank 0 cannot be written: ") == 2
    assert samples((tmp_path / "commlib.0.prom").read_text(encoding="utf-8"))
