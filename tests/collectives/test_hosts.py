"""The hier_* algorithms: hosts that are alike, of different sizes, and whose ranks are not in order."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache

import pytest
import torch

from commlib.collectives import COLLECTIVES, Call
from commlib.communicator import Communicator
from commlib.errors import CommError, Unsupported
from commlib.plan import Plan
from commlib.tools.testing import Ranks
from commlib.tools.testing.conformance import EVERY_TYPE, Scope, agree, check_algorithm
from tests import hosts
from tests.fused import drawn

pytestmark = pytest.mark.slow

HIER = [(name, a.name) for name, spec in COLLECTIVES.items() for a in spec.algorithms if a.hosts]
LINKS = [(name, a) for name, a in HIER if not name.endswith("v") and COLLECTIVES[name].algorithm(a).link]
PLACES = ("aabb", "abab", "aaab", "abbc")  # alike, out of order, of different sizes; three hosts, one in the middle
FEW_TYPES = (torch.float32, torch.bfloat16, torch.uint16, torch.complex64)


@pytest.fixture(scope="module")
def on_hosts() -> Iterator[object]:
    """Ranks that live on such hosts, started when they are first asked for."""
    with ExitStack() as stack:

        @cache
        def ranks(places: str) -> Ranks:
            made = Ranks(len(places), create=hosts.create, hosts=places, timeout_s=60.0, deadline_s=120.0)
            return stack.enter_context(made)

        yield ranks


@pytest.mark.parametrize(("name", "algorithm"), HIER)
@pytest.mark.parametrize("places", PLACES)
def test_hosts_give_the_reference(on_hosts, places, name, algorithm):
    few = Scope((0, 1, 33), FEW_TYPES, ("sum", "avg", "max", "bxor"))
    every = Scope((0, 1, 33, 1025), EVERY_TYPE.dtypes, EVERY_TYPE.redops)
    for scope in (every if places == "aabb" else few, Scope((70_001,))):
        verdicts = on_hosts(places).run(check_algorithm, name, algorithm, scope)
        assert [v.wrong for v in verdicts if v.wrong] == []
        assert verdicts[0].cases > 0
        assert name != "all_reduce" or agree(verdicts), "ranks hold different bits"


def in_the_hosts_order(comm: Communicator, places: str, count: int) -> bool:
    before, inputs = comm.plan, [drawn(rank, count) for rank in range(comm.size)]
    of_hosts = [sum(x for x, at in zip(inputs, places, strict=True) if at == host) for host in dict.fromkeys(places)]
    found = []
    for algorithm in ("hier_oneshot", "hier_twoshot"):
        comm.use(Plan.only({"all_reduce": algorithm}, base=before))
        found.append(comm.all_reduce(inputs[comm.rank].clone()))
    comm.use(before)
    return all(torch.equal(x, sum(of_hosts)) for x in found)


@pytest.mark.parametrize("places", PLACES)
def test_sums_are_of_the_ranks_of_a_host_and_then_of_the_hosts_by_every_algorithm(on_hosts, places):
    for count in (1, 1000, 70_001):
        assert all(on_hosts(places).run(in_the_hosts_order, places, count))


def explained(comm: Communicator) -> tuple[str, str, str]:
    small, large = comm.explain("all_reduce", 8), comm.explain("all_reduce", 64 << 20)
    return comm.backend, small.algorithm, large.algorithm


def test_the_plan_chooses_by_size(on_hosts):
    assert set(on_hosts("aabb").run(explained)) == {("torch", "hier_oneshot", "hier_twoshot")}


def on_one_host(comm: Communicator) -> str:
    before = comm.plan
    comm.use(Plan.only({"all_reduce": "hier_twoshot"}))
    with pytest.raises(Unsupported, match="hier_twoshot: all ranks are on one host"):
        comm.all_reduce(torch.ones(3))
    comm.use(Plan.only({"all_reduce": "hier_twoshot"}, base=Plan.only({"all_reduce": "torch_direct"})))
    assert comm.all_reduce(torch.ones(3)).tolist() == [2.0] * 3
    said = str(comm.explain("all_reduce", 8))
    comm.use(before)
    return said


def test_one_host_passes_hosts_over_and_says_so(torch_ranks):
    for why in torch_ranks.run(on_one_host, world=2):
        assert "passed over hier_twoshot: all ranks are on one host" in why


def create_without_memory(world: object, hosts_: str) -> Communicator:
    """Rank 3 cannot make shared memory."""
    from commlib.backends import hosts as module

    def broken(*_: object) -> None:
        raise CommError("no memory here")

    if world.rank == 3:  # type: ignore[attr-defined]
        module.ShmBackend = broken  # type: ignore[assignment,misc]
    return hosts.create(world, hosts_)  # type: ignore[arg-type]


def total(comm: Communicator) -> tuple[float, str]:
    return float(comm.all_reduce(torch.ones(1))), str(comm.explain("all_reduce", 4))


def test_where_a_host_has_no_shared_memory_all_go_without():
    with Ranks(4, create=create_without_memory, hosts_="aabb") as ranks:
        for value, why in ranks.run(total):
            assert value == 4.0
            assert "runs torch_direct" in why
            assert "no shared memory inside the hosts: no memory here" in why


def splits(comm: Communicator) -> tuple[list[str], list[float]]:
    across = comm.split(comm.rank % 2)  # one rank of each host
    inside = comm.split(comm.rank // 2)
    assert across is not None
    assert inside is not None
    parts = (across, inside)
    found = [part.explain("all_reduce", 4).algorithm for part in parts]
    values = [float(part.all_reduce(torch.full((1,), comm.rank + 1.0))) for part in parts]
    for part in parts:
        part.close()
    return found, values


def test_splits_are_hosts_too(on_hosts):
    said = on_hosts("aabb").run(splits)
    assert [found for found, _ in said] == [
        ["torch_direct", "hier_oneshot"]
    ] * 4  # one rank of each host shares nothing
    assert [values for _, values in said] == [[4.0, 3.0], [6.0, 3.0], [4.0, 7.0], [6.0, 7.0]]


def later(comm: Communicator) -> list[float]:
    x, y = torch.full((50_000,), comm.rank + 1.0), torch.full((2,), comm.rank + 1.0)
    works = [comm.all_reduce(x, async_op=True), comm.broadcast(y, 2, async_op=True)]
    comm.send_recv(torch.ones(1), (comm.rank + 1) % 4, torch.empty(1), (comm.rank - 1) % 4)
    for work in works:
        work.wait()
    return [float(x[-1]), float(y[0])]


def test_asynchronous_calls_run_in_order(on_hosts):
    assert on_hosts("aabb").run(later) == [[10.0, 3.0]] * 4


def sent(comm: Communicator, name: str, algorithm: str, call: Call) -> tuple[int, int]:
    """Return the messages that this rank sends to other hosts, and their bytes."""
    backend, messages = comm.resources, []
    begin = backend.begin  # type: ignore[attr-defined]

    def counted(what: str, sends: list, recvs: list) -> object:
        messages.extend(x.nbytes for _, x in sends)
        return begin(what, sends, recvs)

    before, collective = comm.plan, COLLECTIVES[name]
    comm.use(Plan.only({name: algorithm}, base=before))
    x, out = (torch.zeros(elements) for elements in collective.shapes(replace(call, rank=comm.rank)))
    backend.begin = counted  # type: ignore[attr-defined]
    collective.invoke(comm, x, out, call)
    del backend.begin  # type: ignore[attr-defined]
    comm.use(before)
    return len(messages), sum(messages)


@pytest.mark.parametrize(("name", "algorithm"), LINKS)
def test_what_goes_between_hosts_is_what_the_row_says(on_hosts, name, algorithm):
    places, row = "aabb", COLLECTIVES[name].algorithm(algorithm)
    call = Call(0, len(places), 0 if name == "barrier" else 720, torch.float32)
    found = on_hosts(places).run(sent, name, algorithm, call)
    by_host = [sum(found[rank][1] for rank, place in enumerate(places) if place == host) for host in set(places)]
    assert (max(messages for messages, _ in found), max(by_host)) == row.link(2, COLLECTIVES[name].num_bytes(call))


def test_one_rank_on_each_host_shares_nothing(on_hosts):
    for value, why in on_hosts("abc").run(total):
        assert value == 3.0
        assert "passed over hier_oneshot: every host has one rank, so no memory is shared" in why
