"""all_to_all_single with splits: rows of each tensor, and one error on all ranks where they disagree."""

from __future__ import annotations

import pytest
import torch

from commlib.communicator import Communicator


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


def equal_rows_without_splits(comm: Communicator) -> bool:
    """Splits on one side only, rows of another width on the other, and nothing at all."""
    x = torch.full((2 * comm.size, 3), float(comm.rank))
    out = torch.empty(comm.size, 6)
    comm.all_to_all_single(out, x, [1] * comm.size)
    nothing = torch.empty(0, 5)
    assert comm.all_to_all_single(nothing, nothing.clone(), in_splits=[0] * comm.size) is nothing
    return torch.equal(out, torch.arange(float(comm.size)).repeat_interleave(6).view(-1, 6))


def disagree_on_splits(comm: Communicator) -> str:
    """Rank 1 expects a row more of rank 0 than that sends; the call after it is made as if nothing had been."""
    from_each = [3, 2, 1] if comm.rank == 1 else [2] * comm.size
    try:
        comm.all_to_all_single(torch.empty(6, 4), torch.ones(6, 4), from_each, [2] * comm.size)
    except ValueError as error:
        assert rows_to_each(comm)
        return str(error)
    return "no error"


@pytest.mark.parametrize("backend", ["shm_ranks", "torch_ranks"])
def test_splits_are_rows_of_each_tensor(request: pytest.FixtureRequest, backend: str) -> None:
    ranks = request.getfixturevalue(backend)
    for call in (rows_to_each, equal_rows_without_splits):
        assert ranks.run(call, world=3) == [True] * 3


@pytest.mark.parametrize("backend", ["shm_ranks", "torch_ranks"])
def test_splits_that_disagree_are_one_error_on_all_ranks(request: pytest.FixtureRequest, backend: str) -> None:
    assert (
        request.getfixturevalue(backend).run(disagree_on_splits, world=3)
        == [
            "all_to_all splits disagree: rank 0 sends 8 elements to rank 1, which expects 12; "
            "make out_splits the transpose of in_splits"
        ]
        * 3
    )
