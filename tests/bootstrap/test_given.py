"""rank, size and address of init(): what they may be."""

import os
import time

import pytest

import commlib
from commlib.bootstrap.given import Given, given
from commlib.errors import CommTimeout
from tests.bootstrap.processes import wait_until


@pytest.mark.parametrize(
    ("address", "where"),
    [
        ("10.0.0.5:29500", ("10.0.0.5", 29500)),
        ("tcp://head.cluster:1", ("head.cluster", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("tcp://[fd00::2]:80", ("fd00::2", 80)),
    ],
)
def test_an_address_is_host_and_port(address, where):
    assert given("auto", 1, 2, address) == Given(1, 2, *where)


@pytest.mark.parametrize("address", ["head", "head:", ":80", "head:0", "head:65536", "head:http", "file:///tmp/x:1"])
def test_another_form_of_address_is_refused(address):
    with pytest.raises(ValueError, match=r"but must be 'host:port' or 'tcp://host:port'"):
        commlib.init(rank=0, size=2, address=address)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 1}, "init was given rank=1, but not size, address; pass rank, size and address, or none"),
        ({"size": 2, "address": "a:1"}, "init was given size=2, address='a:1', but not rank"),
        ({"rank": 2, "size": 2, "address": "a:1"}, "rank is 2 and size 2, but .* rank from 0 to size - 1"),
        ({"rank": 0, "size": 0, "address": "a:1"}, "rank is 0 and size 0, but size must be 1 or more"),
        ({"rank": 0, "size": 2, "address": "a:1", "bootstrap": "mpi"}, "and a bootstrap; pass one or the other"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        commlib.init(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0.0, "size": 2, "address": "a:1"}, "rank is of type float, but must be an int"),
        ({"rank": 0, "size": "2", "address": "a:1"}, "size is of type str"),
        ({"rank": 0, "size": 2, "address": 29500}, "address is of type int"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(arguments, message):
    with pytest.raises(TypeError, match=message):
        commlib.init(**arguments)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_nobody_joins_names_who_is_missing(rank, free_port):
    with pytest.raises(CommTimeout, match=f"rank {rank} waited 0.5 s .*rank {1 - rank}"):
        commlib.init(rank=rank, size=2, address=f"localhost:{free_port}", timeout_s=0.5)


def runs_until_it_ends(address, rank, group, folder):
    os.setpgid(0, group)  # of a rank that runs, if it is not one of its own
    with commlib.init(rank=rank, size=2, address=address, timeout_s=15, max_bytes="1M") as comm:
        while True:
            comm.barrier()
            (folder / f"{rank}").touch()
            time.sleep(0.01)


@pytest.fixture
def be(start, free_port, tmp_path):
    """be(rank, group) starts a rank in a process group; be.running() waits until both run."""

    def be(rank, group=0):
        return start(runs_until_it_ends, f"localhost:{free_port}", rank, group, tmp_path)

    be.running = lambda: wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 15)
    return be


@pytest.mark.parametrize("latecomer", [0, 1])
def test_ranks_of_two_jobs_that_were_taken_for_one_all_end_when_the_others_come(be, latecomer):
    """Rank 0 of one job and rank 1 of another meet; whoever comes next is kin to one of them."""
    mixed = [be(0), be(1)]
    be.running()
    last = be(latecomer, mixed[1 - latecomer].process.pid)
    results = [running.result() for running in (last, *mixed)]
    assert all(f"both are rank {latecomer}" in result and "two jobs meet" in result for result in results), results


def test_a_rank_that_comes_twice_without_kin_inside_ends_nothing(be):
    zero = be(0)
    wait_until(lambda: os.getpgid(zero.process.pid) == zero.process.pid, 15)
    one = be(1, zero.process.pid)
    be.running()
    assert "two jobs meet" in be(1).result()
    one.end()  # both have gone on until now
    assert "rank 1 (process" in zero.result()
