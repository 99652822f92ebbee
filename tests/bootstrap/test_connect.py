"""Which bootstrap a process has: by a launcher's variables, by name, or by rank, size and address; its deadline."""

import os
import subprocess
from pathlib import Path

import pytest

import commlib
from commlib.bootstrap import connect, find
from commlib.bootstrap.launchers import explicit_rank, first_host, slurm_address
from commlib.bootstrap.world import Identity, ProcessInfo, SingleWorld

ROOT = Path(__file__).parents[2]

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
SRUN = {
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "gpu[07-09,12],cpu1",
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
}


def test_a_process_nobody_launched_is_a_world_of_one():
    world = connect()
    assert (world.name, world.rank, world.size, world.local_rank) == ("single", 0, 1, 0)
    assert world.all_gather(b"x", 1) == [b"x"]


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, "single"),
        (TORCHRUN, "torchrun"),
        (OPENMPI, "mpi"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "mpi"),
        (SRUN, "slurm"),
        ({**SRUN, **TORCHRUN, "TORCHELASTIC_RUN_ID": "1"}, "torchrun"),  # one torchrun agent per task of srun
        ({**SRUN, **TORCHRUN, "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "1"}, "torchrun"),  # a job for each task
        ({**SRUN, **TORCHRUN, "RANK": "3"}, "torchrun"),  # each task spawns two ranks
        ({**SRUN, **TORCHRUN, "RANK": "0", "WORLD_SIZE": "2"}, "torchrun"),  # a script that sets torch's variables
        ({**OPENMPI, **TORCHRUN}, "torchrun"),  # a wrapper under mpiexec that sets torch's variables
        ({"MASTER_ADDR": "x", "MASTER_PORT": "1"}, "single"),  # left in a profile
        ({"PMIX_RANK": "0", "SLURM_NTASKS": "2"}, "single"),
        ({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}, "single"),  # an allocation without srun
    ],
)
def test_the_innermost_launcher_is_found(environ, name):
    assert find(environ) == name


@pytest.mark.parametrize(
    ("environ", "launchers"),
    [
        ({**TORCHRUN, "PMI_RANK": "1", "PMI_SIZE": "2"}, ("torchrun", "mpi")),
        ({**SRUN, **TORCHRUN, "WORLD_SIZE": "3"}, ("torchrun", "slurm")),
        ({**SRUN, **TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}, ("torchrun", "slurm")),
        ({**SRUN, **TORCHRUN, "WORLD_SIZE": "2"}, ("torchrun", "slurm")),
        ({**OPENMPI, **TORCHRUN, "RANK": "2"}, ("torchrun", "mpi")),
    ],
)
def test_launchers_that_contradict_each_other_are_ambiguous(environ, launchers):
    remedy = " or ".join(f"COMMLIB_BOOTSTRAP={name}" for name in launchers)
    with pytest.raises(ValueError, match=f"ambiguous environment: .*set {remedy}"):
        find(environ)


@pytest.mark.parametrize(
    ("environ", "missing"),
    [
        ({"RANK": "0"}, "WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "x"}, "RANK, MASTER_PORT"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK"),
        ({"PMI_RANK": "0"}, "PMI_SIZE"),
        ({name: value for name, value in SRUN.items() if name != "SLURM_STEP_ID"}, "SLURM_STEP_ID"),
    ],
)
def test_half_set_variables_say_what_is_missing(environ, missing):
    with pytest.raises(ValueError, match=f"half set.* {missing} missing"):
        find(environ)


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "4"), ("RANK", "x"), ("WORLD_SIZE", "two"), ("LOCAL_RANK", "-1"), ("LOCAL_RANK", "4")]
    + [("MASTER_PORT", port) for port in ("65536", "0", "-1", "http")],
)
def test_numbers_that_make_no_sense_are_refused(name, value, monkeypatch):
    for variable, number in {**TORCHRUN, name: value}.items():
        monkeypatch.setenv(variable, number)
    with pytest.raises(ValueError, match=f"{name} (must be|is not a whole)"):
        connect(timeout_s=1)


@pytest.mark.parametrize("name", ["torchrun", "slurm"])
def test_a_bootstrap_asked_for_by_name_must_be_there(name, monkeypatch):
    with pytest.raises(ValueError, match="start the ranks with"):
        connect(name)
    monkeypatch.setenv("COMMLIB_BOOTSTRAP", name)
    with pytest.raises(ValueError, match="start the ranks with"):
        connect()
    for error, wrong in ((ValueError, "torchrum"), (TypeError, 3)):
        with pytest.raises(error):
            connect(wrong)


def test_a_host_is_one_kernel_namespace_user_and_given_name_and_its_ranks_are_numbered_by_kernel_and_hostname():
    for differs in range(5):
        world = SingleWorld()
        world.rank = 2
        world.infos = [ProcessInfo(*(str(at == differs and rank == 1) for at in range(6))) for rank in range(3)]
        hosts = [[0, 1, 2]] if differs == 1 else [[0, 2], [1]]  # each container has another hostname
        assert ([host.ranks for host in world.hosts()], world.count_local_rank()) == (hosts, 1 if differs < 2 else 2)


def test_every_task_finds_the_same_address_and_every_step_its_own():
    nodes = {**SRUN, "SLURM_STEP_NUM_NODES": "4"}
    assert slurm_address(nodes) == slurm_address({**nodes, "SLURM_PROCID": "1"})
    assert slurm_address(nodes)[0] == "gpu07"
    assert slurm_address(nodes)[1] != slurm_address({**nodes, "SLURM_STEP_ID": "1"})[1]
    assert slurm_address({**nodes, "MASTER_ADDR": "head", "MASTER_PORT": "29500"}) == ("head", 29500)


def test_a_batch_job_gets_a_secret_unless_it_has_one(tmp_path):
    (tmp_path / "srun").write_text("#!/bin/sh\necho $COMMLIB_SECRET\n")
    (tmp_path / "srun").chmod(0o755)

    def secret(**extra):
        environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), **extra}
        batch = ["bash", str(ROOT / "launch/slurm.sbatch"), "true"]
        return subprocess.run(batch, env=environ, capture_output=True, text=True, check=True).stdout.strip()

    secrets = {secret(), secret()}
    assert len(secrets) == 2 and all(len(value) == 44 for value in secrets)
    assert secret(COMMLIB_SECRET="mine") == "mine"


def test_the_first_host_of_a_nodelist():
    firsts = {"node1": "node1", "a,b": "a", "gpu[07-09,12],cpu1": "gpu07", "rack[2,4]node[3-4].site": "rack2node3.site"}
    assert {nodelist: first_host(nodelist) for nodelist in firsts} == firsts


def test_an_address_is_host_and_port():
    assert explicit_rank("auto", 1, 2, "10.0.0.5:29500") == (Identity(1, 2), ("10.0.0.5", 29500))
    assert explicit_rank("auto", 1, 2, "[::1]:65535") == (Identity(1, 2), ("::1", 65535))
    assert explicit_rank("auto", 1, 2, "tcp://[fd00::2]:80") == (Identity(1, 2), ("fd00::2", 80))


@pytest.mark.parametrize("address", ["head", "head:", ":80", "head:0", "head:65536", "head:http", "file:///tmp/x:1"])
def test_another_form_of_address_is_refused(address):
    with pytest.raises(ValueError, match="host:port"):
        commlib.init(rank=0, size=2, address=address)


def test_arguments_that_contradict_each_other_or_are_of_a_wrong_type_are_refused():
    good = {"rank": 0, "size": 2, "address": "a:1"}
    for wrong in ({"rank": 1}, {"size": 2, "address": "a:1"}, *({**good, **one} for one in ({"rank": 2}, {"size": 0}))):
        with pytest.raises(ValueError, match=r"rank.* size"):
            commlib.init(**wrong)
    with pytest.raises(ValueError, match="bootstrap; pass one or the other"):
        commlib.init(**good, bootstrap="mpi")
    for name, value in {"rank": 0.0, "size": "2", "address": 29500}.items():
        with pytest.raises(TypeError, match=f"{name} is of type {type(value).__name__}"):
            commlib.init(**{**good, name: value})
