"""The peers of `commlib bench`, and algorithms: why one makes no calls, and that those it makes are right."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import commlib
from commlib.bench.measure import pinned_to
from commlib.bootstrap import mpi
from commlib.cli.options import python_file
from commlib.collectives import COLLECTIVES, Call, Collective
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


def test_a_peer_that_cannot_start_says_why_on_every_rank_and_refuses_every_call(shm_ranks: Ranks) -> None:
    for name, reason in [
        ("broken", "broken did not start: no engine"),
        ("nccl", "NCCL needs GPUs; this job is on cpu"),
        ("symm", "torch's symmetric memory is on GPUs; this job is on cpu"),
        ("nccl_windows", "NCCL needs GPUs; this job is on cpu"),
        ("newer_nccl", "NCCL needs GPUs; this job is on cpu"),
        ("newer_nccl_windows", "NCCL needs GPUs; this job is on cpu"),
        ("flashinfer", "torch's symmetric memory is on GPUs; this job is on cpu"),
        ("sglang", "torch's symmetric memory is on GPUs; this job is on cpu"),
    ]:
        of_ranks = shm_ranks.run(reasons, name, world=2)
        assert {text for of_rank in of_ranks for text in of_rank} == {reason}


MPI_WORDS = ("-b", "8", "-e", "64", "-f", "8", "--time", "0.1", "--iters", "1", "--root", "1", "--algorithms", "auto")


@pytest.mark.slow
def test_mpi_makes_every_call_in_every_form_and_is_right(mpich: None) -> None:
    command = [sys.executable, "-m", "commlib", "bench", "-n", "2", *MPI_WORDS, "--peers", "mpi", "--format", "csv"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert result.returncode == 0, result.stderr
    rows = [row for row in csv.DictReader(io.StringIO(result.stdout)) if row["algorithm"] == "mpi"]
    made = {(row["op"], row["in_place"]) for row in rows if not row["skipped"]}
    assert {op for op, _ in made} == set(COLLECTIVES) - {"all_reduce_rms_norm"}
    skipped = {(row["op"], row["in_place"]) for row in rows if row["skipped"]}
    skipped -= {("all_reduce_rms_norm", form) for form in ("true", "false")}
    assert skipped == {("reduce_scatter", "true"), ("reduce_scatterv", "true")}
    assert {row["wrong"] for row in rows if not row["skipped"]} == {"0"}


JOIN_AND_DIE = """
import os, sys
import commlib
from commlib.peers import load
comm = commlib.init()
peer = load("mpi")
peer.start(comm, False)
assert not peer.reason, peer.reason
assert not {"PMI_FD", "PMI_RANK", "PMI_SIZE"} & set(os.environ)
maps = [line for line in open("/proc/self/maps") if "/mpich_shm_" in line]
print(len(maps) > 0, all("(deleted)" in line for line in maps), flush=True)
comm.barrier()
os._exit(3)
"""


@pytest.mark.slow
def test_ranks_with_mpi_that_are_killed_leave_no_memory_and_no_process_behind(mpich: None, tmp_path: Path) -> None:
    script = tmp_path / "join.py"
    script.write_text(JOIN_AND_DIE)
    command = [sys.executable, "-m", "commlib", "run", "-n", "2", sys.executable, str(script)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # to the end of its pipes
    assert result.returncode == 3, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0] True True", "[1] True True"]


@pytest.mark.slow
def test_why_mpi_cannot_start_is_found_before_it_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py")
    assert "mpi4py.MPI" not in sys.modules
    assert mpi.trial() == ""
    monkeypatch.setenv("MPI4PY_LIBMPI", "/nowhere/libmpi.so")
    assert mpi.trial().startswith("MPI does not start: ")
    monkeypatch.setattr(mpi, "SPEAK_PMI", ())
    monkeypatch.delenv("MPI4PY_LIBMPI")
    assert mpi.trial() == "MPICH starts only under its own mpirun"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert mpi.trial() == "mpi4py is not here; `pip install mpi4py mpich`"


NCCL = """
int ncclGetVersion(int* version) {{ *version = {version}; return 0; }}
int {name}(int* version) {{ return ncclGetVersion(version); }}
"""
TWO = """
import ctypes, sys
from newer_nccl import Newer, version
first = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)  # as torch's may be
peer = Newer()
second = peer.opened()
inside = ctypes.c_int()
second.inside(ctypes.byref(inside))
print(version(first), version(second), inside.value, peer.title)
"""


@pytest.mark.slow
def test_a_newer_nccl_calls_itself_and_not_the_one_that_the_process_has(tmp_path: Path) -> None:
    libraries = []
    for name, number in (("outside", 22809), ("inside", 23203)):
        (tmp_path / name).mkdir()
        library = tmp_path / name / "libnccl.so.2"
        source = library.with_suffix(".c")
        source.write_text(NCCL.format(name=name, version=number))
        command = ["cc", "-shared", "-fPIC", f"-Wl,-soname={library.name}", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        libraries.append(str(library))
    first, second = libraries
    settings = {**os.environ, "NEWER_NCCL": second, "PYTHONPATH": str(FOLDER)}
    command = [sys.executable, "-c", TWO, first]
    result = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert result.stdout == "2.28.9 2.32.3 23203 NCCL 2.32.3\n", result.stderr


def test_what_cannot_work_in_place_is_not_measured_there() -> None:
    spec, x = COLLECTIVES["all_to_all"], torch.zeros(8)
    row = replace(spec.algorithm("shm_oneshot"), in_place=False)
    with commlib.init(backend="shm") as comm:
        call = Call(0, 1, 8, x.dtype)
        pinned_to(comm, spec, row, comm.plan, in_place=False).prepare(x, x.clone(), call)
        with pytest.raises(Unsupported, match="cannot work in place"):
            pinned_to(comm, spec, row, comm.plan, in_place=True).prepare(x, x, call)
