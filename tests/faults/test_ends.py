"""However a process ends, its exit code is Python's, nothing aborts, and its peer hears of it at once."""

import functools
import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("ends_program.py")
NOTICE_S = 40.0  # the deadline of the calls is 60 s

CODES = {
    "exception": 1,
    "system_exit": 3,
    "sigterm": -15,
    "sigint": -2,
    "os_exit": 5,
    "daemon_in_a_small_call": 0,
    "daemon_in_a_large_call": 0,
    "daemon_in_a_collective": 0,
    "daemon_and_exception": 1,
    "pending_recv_and_exception": 1,
    "pending_collectives": 0,
    "forked_child": 7,
}


TORCH_WAYS = ("exception", "daemon_in_a_collective", "pending_recv_and_exception", "forked_child")


@functools.cache
def ends_of(backend: str) -> dict[str, tuple[list[int], list[str]]]:
    """Run all ways of one backend at once: most of the time goes into the interpreter's end."""
    ways = CODES if backend == "shm" else TORCH_WAYS
    command = [sys.executable, str(PROGRAM), backend, *ways]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=110, cwd=PROGRAM.parents[2])
    assert done.returncode == 0, done.stderr
    return dict(zip(ways, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize(
    ("backend", "way"),
    [*product(["shm"], CODES), *(pytest.param("torch", way, marks=pytest.mark.slow) for way in TORCH_WAYS)],
)
def test_a_process_ends_with_its_own_code_and_its_peer_hears_of_it_at_once(backend: str, way: str) -> None:
    codes, said = ends_of(backend)[way]
    assert codes == [CODES[way], 0], said
    assert "terminate called" not in said[0]
    began = float(said[0].split("\n", 1)[0])
    kind, heard, text = said[1].split(" ", 2)
    assert kind == "PeerLost", text
    assert float(heard) - began < NOTICE_S
