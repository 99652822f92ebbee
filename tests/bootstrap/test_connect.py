import pytest

from commlib import bootstrap
from commlib.bootstrap import SingleWorld, connect, find

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
SRUN = {
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "a,b",
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
}


def test_a_process_nobody_launched_is_a_world_of_one():
    world = connect()
    assert (world.name, world.rank, world.size, world.local_rank) == ("single", 0, 1, 0)
    assert world.all_gather(b"x", 1) == [b"x"]
    assert connect(world) is world


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
    ],
)
def test_the_innermost_launcher_is_found(environ, name):
    assert find(environ) == name


@pytest.mark.parametrize("rank", ["0", "1"])
def test_two_launchers_that_disagree_are_ambiguous_in_one_sentence(rank):
    environ = {**TORCHRUN, "RANK": rank, "PMI_RANK": rank, "PMI_SIZE": "2"}
    with pytest.raises(ValueError) as caught:
        find(environ)
    assert str(caught.value) == (
        "ambiguous environment: torchrun announces 4 ranks, mpiexec 2; "
        "set COMMLIB_BOOTSTRAP=torchrun or COMMLIB_BOOTSTRAP=mpi"
    )


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({**SRUN, **TORCHRUN, "WORLD_SIZE": "3"}, "torchrun announces 3 ranks, srun 2; set .*=torchrun or .*=slurm"),
        ({**SRUN, **TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}, "torchrun announces 1 rank, srun 2"),
        (
            {**SRUN, **TORCHRUN, "WORLD_SIZE": "2"},
            "torchrun and srun announce 2 ranks each, but give this process diff",
        ),
        ({**OPENMPI, **TORCHRUN, "RANK": "2"}, "torchrun and mpiexec announce 4 ranks each, but give this process"),
    ],
)
def test_variables_set_by_hand_that_contradict_the_launcher_are_ambiguous(environ, told):
    with pytest.raises(ValueError, match=f"ambiguous environment: {told}"):
        find(environ)


@pytest.mark.parametrize("local_rank", ["-1", "4", "x"])
def test_a_local_rank_that_makes_no_sense_is_refused(local_rank, monkeypatch):
    for name, value in {**TORCHRUN, "LOCAL_RANK": local_rank}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"LOCAL_RANK (must be from 0 to 3|is not a whole number)"):
        connect(timeout_s=1)


@pytest.mark.parametrize(
    ("environ", "missing"),
    [
        ({"RANK": "0"}, "WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "x"}, "RANK, MASTER_PORT"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK"),
        ({"PMI_RANK": "0"}, "PMI_SIZE"),
        ({"COMMLIB_LOCAL_RANK": "0", "COMMLIB_LOCAL_SIZE": "2"}, "COMMLIB_LOCAL_FD"),
    ],
)
def test_half_set_variables_say_what_is_missing(environ, missing):
    with pytest.raises(ValueError, match=f"half set.* {missing} missing"):
        find(environ)


@pytest.mark.parametrize("change", [{"RANK": "4"}, {"RANK": "-1"}, {"RANK": "x"}, {"WORLD_SIZE": "two"}])
def test_numbers_that_make_no_sense_are_refused_without_rank_specific_values(change):
    with pytest.raises(ValueError, match=r"RANK must be|RANK is not a whole|WORLD_SIZE is not a whole"):
        find({**TORCHRUN, **change})


@pytest.mark.parametrize("name", ["local", "torchrun", "slurm"])
def test_a_bootstrap_asked_for_by_name_must_be_there(name, monkeypatch):
    with pytest.raises(ValueError, match="start the ranks with"):
        connect(name)
    monkeypatch.setenv("COMMLIB_BOOTSTRAP", name)
    with pytest.raises(ValueError, match="start the ranks with"):
        connect()


def test_single_wins_over_any_launcher_when_asked_for(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    assert isinstance(connect("single"), SingleWorld)


def test_anything_else_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match="'torchrum' is not one of auto, local, torchrun, mpi, slurm, single"):
        connect("torchrum")
    with pytest.raises(TypeError, match="got int"):
        connect(3)


def test_the_table_is_complete():
    assert list(bootstrap.BOOTSTRAPS) == ["local", "torchrun", "mpi", "slurm"]
