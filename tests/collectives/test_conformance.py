"""Every algorithm of every table, on 1 to 4 live ranks, over types, reductions, ragged sizes and placements."""

from __future__ import annotations

import pytest
import torch

from commlib.collectives import COLLECTIVES
from commlib.collectives.params import PULL
from commlib.communicator import Communicator
from commlib.plan import Plan
from commlib.testing import Ranks
from commlib.testing.conformance import EVERY_SIZE, EVERY_TYPE, Scope, Verdict, agree, check_algorithm

# The outer loop: algorithms of one collective follow each other and share what is expected.
WORLDS = (pytest.param(1, marks=pytest.mark.slow), 2, 3, pytest.param(4, marks=pytest.mark.slow))


def algorithms(backend: str) -> list[tuple[str, str]]:
    return [
        (name, a.name)
        for name, spec in COLLECTIVES.items()
        for a in spec.algorithms
        if a.backend == backend and not a.hosts
    ]


def check(ranks: Ranks, world: int, name: str, algorithm: str, scope: Scope) -> None:
    verdicts = ranks.run(check_algorithm, name, algorithm, scope, world=world)
    assert [v.wrong for v in verdicts if v.wrong] == []
    if verdicts[0].cases == 0:
        pytest.skip(f"{algorithm} refuses all of these on {world} ranks")
    if name == "all_reduce" and COLLECTIVES[name].algorithm(algorithm).ordered:
        assert agree(verdicts), "ranks hold different bits"


@pytest.mark.parametrize(("name", "algorithm"), algorithms("shm"))
@pytest.mark.parametrize("world", WORLDS)
def test_shm_gives_the_reference_for_every_type_and_reduction(
    shm_ranks: Ranks, name: str, algorithm: str, world: int
) -> None:
    check(shm_ranks, world, name, algorithm, EVERY_TYPE)


@pytest.mark.parametrize(("name", "algorithm"), algorithms("shm"))
@pytest.mark.parametrize("world", WORLDS)
def test_shm_gives_the_reference_for_every_size(shm_ranks: Ranks, name: str, algorithm: str, world: int) -> None:
    check(shm_ranks, world, name, algorithm, EVERY_SIZE)


def check_pulled(comm: Communicator, name: str, algorithm: str, scope: Scope) -> Verdict:
    """Check it where peers read each other's memory; pins keep the parameters of the plan below."""
    before = comm.plan
    comm.use(Plan.only({name: algorithm}, base=before, params={"pull": 1}))
    verdict = check_algorithm(comm, name, algorithm, scope)
    comm.use(before)
    return verdict


PULLED = [(name, a) for name, a in algorithms("shm") if PULL in COLLECTIVES[name].algorithm(a).params]


@pytest.mark.parametrize(("name", "algorithm"), PULLED)
@pytest.mark.parametrize("world", (2, 4))
def test_what_is_read_in_its_process_is_the_reference(shm_ranks: Ranks, name: str, algorithm: str, world: int) -> None:
    verdicts = shm_ranks.run(check_pulled, name, algorithm, Scope((0, 1, 33, 70_001)), world=world)
    assert [v.wrong for v in verdicts if v.wrong] == []


@pytest.mark.parametrize(("name", "algorithm"), algorithms("torch"))
@pytest.mark.parametrize("world", WORLDS[:2] + WORLDS[3:])
def test_torch_gives_the_reference(torch_ranks: Ranks, name: str, algorithm: str, world: int) -> None:
    few = Scope((0, 1, 33), EVERY_TYPE.dtypes, EVERY_TYPE.redops)
    check(torch_ranks, world, name, algorithm, few)


@pytest.mark.parametrize("world", WORLDS)
def test_all_reduce_gives_the_same_bits_with_every_algorithm(shm_ranks: Ranks, world: int) -> None:
    names = [a.name for a in COLLECTIVES["all_reduce"].algorithms if a.backend == "shm"]
    scope = Scope((33, 5000, 70_001), EVERY_TYPE.dtypes[:3], ("sum", "avg", "max"))
    runs = {name: shm_ranks.run(check_algorithm, "all_reduce", name, scope, world=world) for name in names}
    assert len({v.checksum for verdicts in runs.values() for v in verdicts}) == 1


def averages(comm: Communicator) -> list[int]:
    found = []
    for dtype, most in ((torch.int8, 127), (torch.uint8, 255)):
        x = torch.full((5,), most - comm.rank, dtype=dtype)
        found.append(int(comm.all_reduce(x, "avg")[0]))
        out = torch.zeros(5, dtype=dtype)
        comm.reduce_scatter_tensor(out, torch.full((10,), most, dtype=dtype), "avg")
        found.append(int(comm.reduce(out, 0, "avg")[4]))
    return found


@pytest.mark.parametrize("backend", ["shm_ranks", "torch_ranks"])
def test_an_average_of_small_integers_does_not_wrap(request: pytest.FixtureRequest, backend: str) -> None:
    assert request.getfixturevalue(backend).run(averages, world=2) == [[126, 127, 254, 255]] * 2
