import os
import subprocess
from pathlib import Path

import pytest

from commlib.bootstrap import slurm

ROOT = Path(__file__).parents[2]
STEP = {
    "SLURM_JOB_ID": "12345",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NODELIST": "gpu[07-09,12],cpu1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
}


def test_tasks_of_a_step_exchange_bytes(program):
    job = {**STEP, "SLURM_JOB_ID": str(os.getpid())}  # another port for every run of the tests
    second = {**job, "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
    codes, output = program.run(job, second, steps=["exchange", "late", "dead"])
    assert codes == [0, -9], output
    report = program.report(0)
    assert (report["name"], report["size"], report["local_rank"]) == ("slurm", 2, 0)
    assert report["late"].startswith("CommTimeout") and "rank 1" in report["late"]
    assert report["dead"].startswith("PeerLost") and "rank 1" in report["dead"]


def test_an_allocation_without_srun_is_no_world():
    assert slurm.detect({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}) is None
    assert slurm.detect(STEP) == 2


@pytest.mark.parametrize("missing", ["SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURM_STEP_ID"])
def test_a_half_set_step_says_what_is_missing(missing):
    with pytest.raises(ValueError, match=f"half set.* {missing} missing"):
        slurm.detect({name: value for name, value in STEP.items() if name != missing})


def test_every_task_finds_the_same_address_and_every_step_its_own():
    nodes = {**STEP, "SLURM_STEP_NUM_NODES": "4"}
    assert slurm.address(nodes) == slurm.address({**nodes, "SLURM_PROCID": "1"})
    assert slurm.address(nodes)[0] == "gpu07"
    assert slurm.address(nodes)[1] != slurm.address({**nodes, "SLURM_STEP_ID": "1"})[1]
    assert slurm.address({**nodes, "MASTER_ADDR": "head", "MASTER_PORT": "29500"}) == ("head", 29500)


def test_a_batch_job_gets_a_secret_unless_it_has_one(tmp_path):
    (tmp_path / "srun").write_text("#!/bin/sh\necho $COMMLIB_SECRET\n")
    (tmp_path / "srun").chmod(0o755)

    def secret(**given):
        environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), **given}
        batch = ["bash", str(ROOT / "launch/slurm.sbatch"), "true"]
        return subprocess.run(batch, env=environ, capture_output=True, text=True, check=True).stdout.strip()

    secrets = {secret(), secret()}
    assert len(secrets) == 2 and all(len(value) == 44 for value in secrets)
    assert secret(COMMLIB_SECRET="mine") == "mine"


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("node1", "node1"),
        ("a,b", "a"),
        ("gpu[07-09,12],cpu1", "gpu07"),
        ("rack[2,4]node[3-4].site", "rack2node3.site"),
    ],
)
def test_the_first_host_of_a_nodelist(nodelist, first):
    assert slurm.first_host(nodelist) == first
