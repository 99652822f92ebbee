"""The command `commlib debug`: what it prints of one job or several, and of ranks that are still in init()."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from commlib.cli.debug import debug
from commlib.debug.jobs import starting_here
from commlib.debug.starting import Waiting
from commlib.testing import Ranks
from tests.debug.test_debug import LONG_S, stay_away, wait_for


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with Ranks(3, backend="shm", timeout_s=LONG_S, max_bytes=1 << 20) as ranks:
        yield ranks


def test_the_command_says_it_in_words_as_json_and_in_files(three: Ranks, tmp_path: Path) -> None:
    handle = three.start(stay_away, 4.0)
    wait_for(three, "missing")
    time.sleep(1.0)  # from there on the command takes a wait seriously
    shown = CliRunner().invoke(debug, [str(three.pids[0]), "--dump", str(tmp_path)], standalone_mode=False)
    assert shown.return_value == 3
    assert "3 of 3 ranks here" in shown.output
    assert "in stay_away; it sleeps" in " ".join(shown.output.split())
    number = str(three.pids[0])
    assert {path.name for path in (tmp_path / number).iterdir()} >= {"page.txt", "job.json", f"record.{number}"}
    data = json.loads(CliRunner().invoke(debug, [number, "--json"], standalone_mode=False).output)
    assert (data["schema"], data["findings"][0]["ranks"]) == ("commlib.debug", [2])
    assert [rank["number"] for rank in data["ranks"]] == [0, 1, 2]
    handle.join()
    three.restart()


def test_a_rank_that_waits_in_init_is_shown() -> None:
    with Waiting(0, 2, 300.0) as waiting:
        waiting.tell("rank 1")
        shown = CliRunner().invoke(debug, [str(os.getpid())], standalone_mode=False)
        data = CliRunner().invoke(debug, [str(os.getpid()), "--json"], standalone_mode=False).output.splitlines()[0]
    said = r"rank 0 of 2 waits in commlib\.init\(\) for rank 1: \d s of 300 s"
    assert re.search(said, " ".join(shown.output.split()))
    assert [rank["waits_for"] for rank in json.loads(data)["ranks"]] == ["rank 1"]
    assert starting_here(os.getpid()) == []


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
