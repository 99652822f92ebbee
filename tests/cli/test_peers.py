"""The peers of `commlib bench`: why one makes no calls, and that those it makes are right."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commlib.cli.options import python_file
from commlib.collectives import COLLECTIVES, Collective
from commlib.communicator import Communicator
from commlib.errors import Unsupported
from commlib.peers import PEERS, load
from commlib.peers.peer import Peer
from commlib.testing import Ranks
from commlib.timing import Candidate

MPIEXEC = Path(sys.executable).with_name("mpiexec")


@pytest.fixture
def mpich() -> Iterator[None]:
    """MPICH leaves its segment behind when a rank aborts; other tests look there for ours."""
    pytest.importorskip("mpi4py", reason="`pip install mpi4py mpich` to test MPI")
    if not MPIEXEC.exists():
        pytest.skip("no mpiexec beside python: `pip install mpich`")
    before = set(Path("/dev/shm").glob("mpich_shm_*"))
    yield
    for segment in set(Path("/dev/shm").glob("mpich_shm_*")) - before:
        segment.unlink(missing_ok=True)


def test_the_table_is_the_folder() -> None:
    folder = Path(sys.modules["commlib.peers"].__file__ or "").parent
    assert {path.stem for path in folder.glob("*.py")} - {"__init__", "peer"} == set(PEERS)
    peers = [load(name) for name in PEERS]
    assert [peer.name for peer in peers] == list(PEERS)
    labels = [label for peer in peers for label in peer.labels]
    assert len(set(labels)) == len(labels)


class Broken(Peer):
    """Cannot start on the last rank."""

    name, labels = "broken", ("broken",)

    def lacks(self, comm: Communicator) -> str:
        return ""

    def join(self, comm: Communicator) -> None:
        if comm.rank == comm.size - 1:
            raise RuntimeError("no engine\nat all")

    def candidates(self, comm: Communicator, collective: Collective, in_place: bool) -> list[Candidate]:
        raise AssertionError("not started")

    def stop(self) -> None:
        pass


FOLDER = Path(__file__).resolve().parents[2] / "benchmarks/peers"


def made(name: str) -> Peer:
    """Return a peer of the table, of a file beside the benchmarks, or the broken one."""
    if (FOLDER / f"{name}.py").exists():
        peer = python_file(FOLDER / f"{name}.py", "make").make()
        assert isinstance(peer, Peer)
        return peer
    return Broken() if name == "broken" else load(name)


def reasons(comm: Communicator, name: str) -> list[str]:
    peer = made(name)
    peer.start(comm, graph=False)
    found = [peer.reason]
    for candidate in peer.lines(comm, COLLECTIVES["all_reduce"], False):
        with pytest.raises(Unsupported) as refused:
            candidate.prepare(comm.empty(1), comm.empty(1), None)  # type: ignore[arg-type]  # it is not looked at
        found.append(str(refused.value))
    peer.stop()
    return found


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken", "broken did not start: no engine"),
        ("mpi", "start it under mpirun"),
        ("nccl", "NCCL needs GPUs; this job is on cpu"),
        ("symm", "torch's symmetric memory is on GPUs; this job is on cpu"),
        ("nccl_windows", "NCCL needs GPUs; this job is on cpu"),
        ("flashinfer", "torch's symmetric memory is on GPUs; this job is on cpu"),
    ],
)
def test_a_peer_that_cannot_start_says_why_on_every_rank_and_refuses_every_call(
    shm_ranks: Ranks, name: str, reason: str
) -> None:
    of_ranks = shm_ranks.run(reasons, name, world=2)
    assert {text for of_rank in of_ranks for text in of_rank} == {reason}


def test_mpi_makes_every_call_in_every_form_and_is_right(mpich: None) -> None:
    words = ("-b", "8", "-e", "64", "-f", "8", "--time", "0.1", "--iters", "1", "--peers", "mpi", "--root", "1")
    command = [sys.executable, "-m", "commlib", "bench", *words, "--algorithms", "auto", "--format", "csv"]
    result = subprocess.run(
        [str(MPIEXEC), "-n", "2", *command], capture_output=True, text=True, timeout=90, check=False
    )
    assert result.returncode == 0, result.stderr
    rows = [row for row in csv.DictReader(io.StringIO(result.stdout)) if row["algorithm"] == "mpi"]
    made = {(row["op"], row["in_place"]) for row in rows if not row["skipped"]}
    assert {op for op, _ in made} == set(COLLECTIVES)
    skipped = {(row["op"], row["in_place"]) for row in rows if row["skipped"]}
    assert skipped == {("reduce_scatter", "true"), ("reduce_scatterv", "true")}
    assert {row["wrong"] for row in rows if not row["skipped"]} == {"0"}
