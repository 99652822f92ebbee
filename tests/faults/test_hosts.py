"""Faults of ranks on several hosts: every rank names the rank that is to blame."""

import os
import re
import signal
import tempfile

import pytest
import torch

from commlib import env
from commlib.bootstrap import connect
from commlib.bootstrap.world import World
from commlib.communicator import Communicator, create
from commlib.errors import CommError, CommTimeout, PeerLost
from commlib.tools.testing import Ranks
from commlib.tools.testing.ranks import Handle
from tests import hosts

LATE_S = 1.0


def repeat(comm: Communicator, victim: int, fault: str) -> None:
    x = torch.ones(40_000)
    comm.all_reduce(x)
    if comm.rank == victim:
        if fault == "late":
            return
        elif fault == "abort":
            comm.abort("the model has diverged")
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(1000):
        comm.all_reduce(x)


def errors(handle: Handle, but: int) -> list[BaseException]:
    found = []
    for rank in set(range(4)) - {but}:
        with pytest.raises(CommError) as caught:
            handle.result(rank)
        found.append(caught.value)
    return found


FOUND: dict[str, tuple[type[CommError], str]] = {
    "death": (PeerLost, "rank {victim} [^;]*"),
    "late": (CommTimeout, "rank {victim} did not come to all_reduce"),  # and not one that waits too
    "abort": (CommError, "the model has diverged$"),
}


@pytest.mark.parametrize(("fault", "victim"), [("death", 0), ("death", 2), ("late", 3), ("abort", 3)])
def test_ranks_of_all_hosts_name_who_is_to_blame(fault: str, victim: int) -> None:
    error, text = FOUND[fault]
    timeout_s = LATE_S if fault == "late" else 30.0
    with Ranks(4, create=hosts.create, hosts="aabb", timeout_s=timeout_s) as ranks:
        for found in errors(ranks.start(repeat, victim, fault), victim):
            assert isinstance(found, error), found
            assert re.match(text.format(victim=victim), str(found)), found


def over_a_group(world: World) -> Communicator:
    """Make a gloo group as a program of torch would, and a communicator on it."""
    import torch.distributed as dist

    os.environ[env.HOST.name] = "aabb"[world.rank]
    store = dist.FileStore(world.exchange(tempfile.mktemp(), 30.0)[0], world.size)
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
    return create(connect(dist.group.WORLD, timeout_s=60.0), timeout_s=10.0)  # the group is not hung up


def sum_of_ranks(comm: Communicator) -> tuple[float, str]:
    return float(comm.all_reduce(torch.full((1,), comm.rank + 1.0))), comm.backend


@pytest.mark.slow
def test_a_group_that_is_passed_carries_the_calls_and_their_errors():
    with Ranks(4, create=over_a_group, grace_s=30.0) as ranks:  # ranks wait for the dead one up to their deadline
        assert ranks.run(sum_of_ranks) == [(10.0, "torch")] * 4
        for error in errors(ranks.start(repeat, 3, "death"), 3):
            assert isinstance(error, PeerLost)
            assert "rank 3" in str(error).partition(";")[0]
