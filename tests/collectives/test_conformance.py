"""Every algorithm of every table, on 1 to 4 live ranks, over types, reductions, ragged sizes and placements."""

import pytest
import torch

from commlib.collectives import COLLECTIVES
from commlib.collectives.rows import PULL
from commlib.collectives.spec import Call
from commlib.communicator import Communicator
from commlib.plan import Plan
from commlib.tools.testing import Ranks
from commlib.tools.testing.conformance import EVERY_SIZE, EVERY_TYPE, Scope, _deviates, _peak, check_algorithm
from tests.on_ranks import on_ranks

# The outer loop: algorithms of one collective follow each other and share what is expected.
WORLDS = (pytest.param(1, marks=pytest.mark.slow), 2, 3, pytest.param(4, marks=pytest.mark.slow))


def algorithms(backend: str) -> list[tuple[str, str]]:
    return [(name, a.name) for name, spec in COLLECTIVES.items() for a in spec.algorithms if a.backend == backend]


def check(ranks: Ranks, world: int | None, name: str, algorithm: str, scope: Scope) -> None:
    verdicts = ranks.run(check_algorithm, name, algorithm, scope, world=world)
    assert [v.wrong for v in verdicts if v.wrong] == []
    if verdicts[0].cases == 0:
        pytest.skip(f"{algorithm} refuses all of these on {world or ranks.size} ranks")


SHORTER, LONGER = Scope((2048, 300_007)), Scope((65_537, 1_100_003), (torch.bfloat16,))  # of every size and type
SCOPES = {"every type": [EVERY_TYPE], "sizes": [SHORTER, LONGER], "every size of both types": [EVERY_SIZE]}
SCOPES_OF_TESTS = [*list(SCOPES)[:2], pytest.param(list(SCOPES)[2], marks=pytest.mark.slow)]


@pytest.mark.parametrize("scope", SCOPES_OF_TESTS)
@pytest.mark.parametrize(("name", "algorithm"), algorithms("shm"))
@pytest.mark.parametrize("world", WORLDS)
def test_shm_gives_the_reference(shm_ranks: Ranks, name: str, algorithm: str, world: int, scope: str) -> None:
    for each in SCOPES[scope]:
        check(shm_ranks, world, name, algorithm, each)


PULLED = [(name, a) for name, a in algorithms("shm") if PULL in COLLECTIVES[name].algorithm(a).params]


@pytest.mark.parametrize(("name", "algorithm"), PULLED)
@pytest.mark.parametrize("world", (2, 4))
@on_ranks()
def test_what_is_read_in_its_process_is_the_reference(comm: Communicator, name: str, algorithm: str, world: int) -> str:
    before = comm.plan
    comm.use(Plan.only({name: algorithm}, base=before, params={"pull": 1}))  # pins keep the parameters below
    scope = Scope((0, 1, 33, 16_384, 70_001))  # 64 KiB fill a cell of the mailbox
    verdict = check_algorithm(comm, name, algorithm, scope)
    comm.use(before)
    return verdict.wrong


@pytest.mark.parametrize(("name", "algorithm"), algorithms("torch"))
@pytest.mark.parametrize("world", WORLDS[:2] + WORLDS[3:])
def test_torch_gives_the_reference(torch_ranks: Ranks, name: str, algorithm: str, world: int) -> None:
    few = Scope((0, 1, 33), EVERY_TYPE.dtypes, EVERY_TYPE.redops)
    check(torch_ranks, world, name, algorithm, few)


@on_ranks(2)
def test_an_average_of_small_integers_does_not_wrap(comm: Communicator) -> None:
    found = []
    for dtype, most in ((torch.int8, 127), (torch.uint8, 255)):
        x = torch.full((5,), most - comm.rank, dtype=dtype)
        found.append(int(comm.all_reduce(x, "avg")[0]))
        out = torch.zeros(5, dtype=dtype)
        comm.reduce_scatter_tensor(out, torch.full((10,), most, dtype=dtype), "avg")
        found.append(int(comm.reduce(out, 0, "avg")[4]))
    assert found == [126, 127, 254, 255]


# --- splits -----------------------------------------------------------------------------------------------------------


def rows_to_each(comm: Communicator) -> bool:
    """Rank i sends (i + 2 j) % 3 rows of three numbers to rank j; the numbers say from where and where to."""
    splits = [[(i + 2 * j) % 3 for j in range(comm.size)] for i in range(comm.size)]

    def rows(source: int, target: int) -> torch.Tensor:
        return torch.full((splits[source][target], 3), 10.0 * source + target)

    x = torch.cat([rows(comm.rank, j) for j in range(comm.size)])
    expected = torch.cat([rows(i, comm.rank) for i in range(comm.size)])
    out_splits, in_splits = [row[comm.rank] for row in splits], splits[comm.rank]
    now, later = torch.empty_like(expected), torch.empty_like(expected)
    work = comm.all_to_all_single(later, x, out_splits, in_splits, async_op=True)
    kept, out_splits[:] = list(out_splits), [-1] * comm.size  # the work has its own
    assert comm.all_to_all_single(now, x, kept, in_splits) is now
    assert work.result() is later
    return torch.equal(now, expected) and torch.equal(later, expected)


@on_ranks(3, "each_ranks")
def test_equal_rows_need_no_splits(comm: Communicator) -> bool:
    """Splits on one side only, rows of another width on the other, and nothing at all."""
    x = torch.full((2 * comm.size, 3), float(comm.rank))
    out = torch.empty(comm.size, 6)
    comm.all_to_all_single(out, x, [1] * comm.size)
    nothing = torch.empty(0, 5)
    assert comm.all_to_all_single(nothing, nothing.clone(), in_splits=[0] * comm.size) is nothing
    return torch.equal(out, torch.arange(float(comm.size)).repeat_interleave(6).view(-1, 6))


@on_ranks(3, "each_ranks")
def test_splits_that_disagree_are_one_error_on_all_ranks(comm: Communicator) -> None:
    """Rank 1 expects a row more of rank 0 than that sends; the call after it is made as if nothing had been."""
    from_each = [3, 2, 1] if comm.rank == 1 else [2] * comm.size
    told = "splits disagree.*rank 0 sends 8 elements to rank 1, which expects 12; make out_splits"
    with pytest.raises(ValueError, match=told):
        comm.all_to_all_single(torch.empty(6, 4), torch.ones(6, 4), from_each, [2] * comm.size)
    assert rows_to_each(comm)


@on_ranks(3, "each_ranks")
def test_blocks_that_are_not_equal_need_splits(comm: Communicator) -> None:
    x = torch.ones(2 * comm.size + 1)
    with pytest.raises(ValueError, match=f"x has 7 elements, which {comm.size} ranks cannot share equally"):
        comm.all_to_all_single(torch.empty_like(x), x)
    for name in ("out_splits", "in_splits"):
        others = {"out_splits": [3, 2, 2], "in_splits": [3, 2, 2]} | {name: None}
        with pytest.raises(ValueError, match=f"{name} is not given and 7 rows cannot be divided into {comm.size}"):
            comm.all_to_all_single(torch.empty_like(x), x, **others)


# --- what is taken for right where order is free ----------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")
SUM = COLLECTIVES["all_reduce"]


def judged(out: list[float], inputs: list[list[float]], dtype: torch.dtype = torch.float32, redop: str = "sum") -> str:
    """Judge the output of two ranks with these inputs."""
    a, b = (torch.tensor(x, dtype=dtype) for x in inputs)
    call = Call(0, 2, len(out), dtype, redop)
    expected = a.double() * b.double() if redop == "prod" else a.double() + b.double()
    return _deviates(torch.tensor(out, dtype=dtype), expected, _peak(SUM, call, [a, b]), call)


def test_nan_and_infinity_are_wrong_where_a_number_is_expected() -> None:
    assert judged([3.0, 3.0], [[1.0, 1.0], [2.0, 2.0]]) == ""
    for wrong in (NAN, INF, -INF, 4.0):
        assert "wrong: 1 of 2 elements, the first at 1" in judged([3.0, wrong], [[1.0, 1.0], [2.0, 2.0]])


def test_nan_is_right_where_it_is_expected_and_a_number_is_not() -> None:
    assert judged([NAN], [[NAN], [2.0]]) == ""
    assert judged([2.0], [[NAN], [2.0]]) != ""


def test_an_overflow_on_the_way_is_right_only_where_some_order_can_meet_it() -> None:
    assert judged([INF], [[60000.0], [0.5]], torch.float16, "prod") == ""
    assert judged([INF], [[300.0], [0.5]], torch.float16, "prod") != ""
