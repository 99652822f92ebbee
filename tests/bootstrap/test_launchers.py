"""Every way to start two ranks gives a communicator of two; rank, local rank and device agree."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.bootstrap import launched
from tests.bootstrap.processes import Running

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
LAUNCHERS = {
    "local": ["-m", "commlib", "run", "-n", "2"],
    "torchrun": [*TORCHRUN, "2", "--standalone", "--no-python"],
    "slurm": ["-c", FAKE_SRUN],
}


def check(folder, ports=False):
    """`ports`: gloo opens some; commlib needs none on one host."""
    for rank in range(2):
        seen = json.loads((folder / f"{rank}.json").read_text())
        assert seen == {"sum": 3, "size": 2, "local_rank": rank, "device": "cpu"}
        assert ports or (folder / f"ports{rank}").read_text() == ""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_makes_a_communicator_of_its_ranks(launch, quick_python, tmp_path, launcher):
    code, output = launch([quick_python, *LAUNCHERS[launcher]], "commlib", python=quick_python)
    assert code == 0, output
    check(tmp_path)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_of_a_launcher_exchange_bytes_name_who_is_late_and_torch_works_after(
    launch, quick_python, tmp_path, launcher
):
    code, output = launch([quick_python, *LAUNCHERS[launcher]], "world", python=quick_python)
    assert code == 0, output
    for rank in range(2):
        seen = json.loads((tmp_path / f"{rank}.json").read_text())
        assert (seen["name"], seen["local_rank"], "rank 1" in seen["late"]) == (launcher, rank, rank == 0)


@pytest.mark.slow
def test_processes_of_multiprocessing_spawn_that_set_torchs_variables_are_ranks(
    launch, quick_python, tmp_path, free_port
):
    code, output = launch([quick_python, "-c", SPAWN, tmp_path, free_port])
    assert code == 0, output
    check(tmp_path)


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "tcp://localhost:{}", "[::1]:{}"])
def test_ranks_that_are_told_rank_size_and_address_need_no_launcher(tmp_path, free_port, form, monkeypatch):
    for name, value in {"RANK": "7", "WORLD_SIZE": "3", "SLURM_PROCID": "5"}.items():
        monkeypatch.setenv(name, value)  # half of two launchers: arguments count more
    ranks = [Running(told, str(tmp_path), number, form.format(free_port)) for number in range(2)]
    assert [rank.result() for rank in ranks] == [None, None]
    check(tmp_path)


def told(folder, number, address):
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
    code, output = launch([quick_python, *start], how, "dies", python=quick_python)
    assert code == 0, output
    assert (tmp_path / "died").exists()
    assert [json.loads((tmp_path / f"{rank}.json").read_text())["sum"] for rank in range(2)] == [3, 3]


@pytest.mark.slow
def test_agents_of_torchrun_that_count_their_restarts_apart_make_a_new_round(launch, quick_python, tmp_path, free_port):
    """The agent whose rank was killed restarts it, the other one sees its group change: the numbers differ."""
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", free_port]
    start = [*TORCHRUN, "1", *rendezvous, "--nnodes", "2", "--max-restarts", "2", "--no-python"]
    with ThreadPoolExecutor() as pool:
        agents = [
            pool.submit(launch, [quick_python, *start], "commlib", "dies", python=quick_python, timeout_s=90)
            for _ in range(2)
        ]
    assert [agent.result()[0] for agent in agents] == [0, 0], [agent.result() for agent in agents]
    assert (tmp_path / "died").exists()
    assert [json.loads((tmp_path / f"{rank}.json").read_text())["sum"] for rank in range(2)] == [3, 3]
