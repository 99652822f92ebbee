"""Ranks on several hosts: torch.distributed's engine serves all calls, and other backends are refused."""

import logging
from collections.abc import Iterator

import pytest
import torch

from commlib import backends
from commlib.backends import create
from commlib.backends.base import Options
from commlib.bootstrap.world import ProcessInfo, World
from commlib.collectives import COLLECTIVES
from commlib.communicator import Communicator
from commlib.errors import Unsupported
from commlib.tools.testing import Ranks
from commlib.tools.testing.conformance import Scope, check_algorithm
from tests import hosts
from tests.on_ranks import on_ranks

ROWS = [(name, algorithm) for name, spec in COLLECTIVES.items() for algorithm in spec.rows("torch")]


@pytest.fixture(scope="module")
def three_hosts() -> Iterator[Ranks]:
    with Ranks(4, create=hosts.create, hosts="abbc", timeout_s=60.0, deadline_s=120.0) as ranks:
        yield ranks


@pytest.mark.parametrize(("name", "algorithm"), ROWS)
def test_hosts_give_the_reference(three_hosts: Ranks, name: str, algorithm: str) -> None:
    verdicts = three_hosts.run(check_algorithm, name, algorithm, Scope((0, 1, 33, 1025), redops=("sum", "avg")))
    assert [v.wrong for v in verdicts if v.wrong or v.cases == 0] == []


@on_ranks(fixture="three_hosts")
def test_torch_s_engine_is_chosen(comm: Communicator) -> None:
    why = comm.explain("all_reduce", 8)
    assert (comm.backend, comm.device.type, why.algorithm) == ("torch", "cpu", "torch_direct")


def splits(comm: Communicator) -> list[float]:
    """Split across hosts, where one rank is in no part, and inside one."""
    across, inside = comm.split(None if comm.rank == 2 else 0), comm.split(comm.rank in (1, 2), key=-comm.rank)
    totals = []
    for part in (across, inside):
        if part is not None:
            assert part.backend == "torch"
            totals += [float(part.all_reduce(torch.full((1,), comm.rank + 1.0))), float(part.rank)]
            part.close()
    return [*totals, float(comm.all_reduce(torch.ones(1)))]


def test_splits_serve_their_ranks_and_the_parent_goes_on(three_hosts: Ranks) -> None:
    assert three_hosts.run(splits) == [
        [7.0, 0.0, 5.0, 1.0, 4.0],
        [7.0, 1.0, 5.0, 1.0, 4.0],
        [5.0, 0.0, 4.0],
        [7.0, 2.0, 5.0, 0.0, 4.0],
    ]


class Cards(World):
    """Rank 0 of ranks that have said where they are."""

    name, rank, local_rank = "cards", 0, 0

    def __init__(self, *cards: tuple[str, str]) -> None:
        self.size = len(cards)
        self.infos = [ProcessInfo("boot", host, namespace, 1000, "", 1) for host, namespace in cards]

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        raise NotImplementedError


OPTIONS = Options(timeout_s=1.0, max_bytes=0, checked=False)
PLACES = {
    (("a", "pid:[1]"), ("b", "pid:[2]"), ("a", "pid:[1]")): "ranks 0 and 2 on a; rank 1 on b",
    (("a", "pid:[1]"), ("a", "pid:[2]")): (
        "rank 0 on a (user 1000, pid:[1], boot boot); rank 1 on a (user 1000, pid:[2], boot boot)"
    ),
}


@pytest.mark.parametrize("backend", ["shm", "nccl"])
@pytest.mark.parametrize("places", PLACES)
def test_a_backend_for_one_host_is_refused_with_the_hosts_and_a_remedy(backend, places) -> None:
    with pytest.raises(Unsupported, match=f"{backend}.* needs all ranks on one host.*use backend='auto'") as caught:
        create(backend, Cards(*places), OPTIONS)
    assert PLACES[places] in str(caught.value)


def test_the_log_says_why_torch_is_chosen(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends.BACKENDS, "torch", lambda *_: None)
    with caplog.at_level(logging.INFO, "commlib"):
        create("auto", Cards(("a", "pid:[1]"), ("b", "pid:[2]")), OPTIONS)
    assert "backend torch: rank 0 on a; rank 1 on b: " in caplog.text
