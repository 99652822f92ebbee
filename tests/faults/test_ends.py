"""However a process ends, its exit code is Python's, nothing aborts, and its peer hears of it at once."""

import functools
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import ends_program
from tests.faults.ends_program import WAYS

PROGRAM = Path(ends_program.__file__)
OF_TORCH = ("exception", "daemon_in_a_collective", "pending_recv_and_exception", "forked_child")


@functools.cache
def ends_of(backend: str, ways: tuple[str, ...]) -> dict[str, tuple[list[int], list[str]]]:
    """Run several ways at once: most of the time goes into the interpreter's end."""
    command = [sys.executable, str(PROGRAM), backend, *ways]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=110, cwd=PROGRAM.parents[2])
    assert done.returncode == 0, done.stderr
    return dict(zip(ways, map(json.loads, done.stdout.splitlines()), strict=True))


def ends(backend: str, ways: tuple[str, ...], *marks: pytest.MarkDecorator) -> list[object]:
    return [pytest.param(backend, ways, way, id=f"{backend}-{way}", marks=marks) for way in ways]


@pytest.mark.parametrize(
    ("backend", "ways", "way"), ends("shm", tuple(WAYS)) + ends("torch", OF_TORCH, pytest.mark.slow)
)
def test_a_process_ends_with_its_own_code_and_its_peer_hears_of_it_at_once(backend, ways, way) -> None:
    codes, said = ends_of(backend, ways)[way]
    assert codes == [WAYS[way][1], 0], "\n".join(said)
    assert "terminate called" not in said[0]
    assert "PeerLost" in said[1]  # and no timeout


CLOSED = """
import sys, commlib
comm = commlib.init(backend="shm", rank=int(sys.argv[2]), size=2, address=sys.argv[1], timeout_s=30)
comm.barrier()
if comm.rank == 1:
    comm.close()
    sys.exit()
sys.stdin.read()
comm.check()
print("all is well")
"""


def test_a_peer_that_closed_and_then_ended_is_no_loss(quick_python: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    command = [quick_python, "-c", CLOSED, address]
    zero = subprocess.Popen(
        [*command, "0"], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    subprocess.run([*command, "1"], check=True, timeout=60)
    said, errors = zero.communicate(timeout=60)
    assert said == "all is well\n", errors
