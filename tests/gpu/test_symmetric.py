"""symmetric(): torch's own allocations in the arena, for as long as the block lasts."""

from contextlib import suppress

import pytest
import torch

from commlib.collectives.rows import SAFE_SYMMETRIC
from commlib.communicator import Communicator
from commlib.errors import CommError
from tests.gpu.faults import error_of
from tests.gpu.fresh import as_if_nccl_were_new, fresh, recognised
from tests.gpu.on_ranks import on_every_rank

ARENA_BYTES = 64 << 20
NCCL = torch.cuda.nccl.version() if torch.cuda.is_available() else ()


@pytest.mark.skipif(SAFE_SYMMETRIC <= NCCL, reason="nothing tells the symmetric kernel from others")
@on_every_rank
def test_tensors_of_the_arena_are_recognised_and_no_others(comm: Communicator) -> None:
    """The row of the symmetric kernel would have it passed over, so it is told that it serves."""
    with as_if_nccl_were_new():
        made = fresh(comm, max_bytes=ARENA_BYTES)
    before, inside = torch.ones(1000, device=comm.device), made.empty(1000).zero_()
    with made.symmetric():
        small = torch.ones(1000, device=comm.device)
        large = torch.ones(3_000_000, device=comm.device)
        result = large * 2
    between = torch.ones(1000, device=comm.device)
    with made.symmetric():
        again = torch.ones(1000, device=comm.device)
    after = torch.ones(3_000_000, device=comm.device)
    tensors = {"small": small, "large": large, "a view": large[5:1000], "result": result, "again": again}
    tensors |= {"empty": inside, "a slice": inside[3:90], "before": before, "between": between, "after": after}
    found = {name for name, x in tensors.items() if recognised(made, x)}
    pairs = {"both": (inside, made.empty(1000)), "in": (inside, after[:1000]), "out": (before, made.empty(1000))}
    found |= {name for name, (x, out) in pairs.items() if recognised(made, x, out)}
    made.barrier()
    torch.cuda.synchronize()
    del tensors, pairs, small, large, result, again, inside
    made.close()
    assert found == {"small", "large", "a view", "result", "again", "empty", "a slice", "both"}


@on_every_rank
def test_a_full_arena_is_an_error_and_allocations_go_on(comm: Communicator) -> bool:
    """Inside the block and after it."""
    made = fresh(comm, max_bytes=ARENA_BYTES)
    with made.symmetric():
        fits = torch.ones(1000, device=comm.device)
        with pytest.raises((CommError, torch.OutOfMemoryError), match=r"\w"):
            torch.empty(4 * ARENA_BYTES, dtype=torch.uint8, device=comm.device)
        smaller = torch.ones(2000, device=comm.device)
    outside = torch.ones(ARENA_BYTES, device=comm.device)
    good = all(bool((made.all_reduce(x) == comm.size).all()) for x in (fits, smaller, outside))
    del fits, smaller
    made.close()
    return good


@on_every_rank
def test_room_is_used_again(comm: Communicator) -> bool:
    made = fresh(comm, max_bytes=ARENA_BYTES)
    good = True
    for step in range(20):
        with made.symmetric():
            x = torch.full((4 << 20,), float(step), device=comm.device)
        made.all_reduce(x)
        good &= bool((x == step * comm.size).all())
        del x
    made.close()
    return good


@on_every_rank
def test_an_error_inside_gives_torch_its_own_memory_back(comm: Communicator) -> bool:
    made = fresh(comm, max_bytes=ARENA_BYTES)
    with suppress(KeyError), made.symmetric():
        raise KeyError
    x = torch.ones(2 * ARENA_BYTES, dtype=torch.uint8, device=comm.device)  # does not fit into the arena
    made.close()
    return bool((x == 1).all())


@on_every_rank
def test_tensors_of_the_arena_outlive_the_communicator(comm: Communicator) -> None:
    made = fresh(comm, max_bytes=ARENA_BYTES)
    with made.symmetric():
        x = torch.ones(1000, device=comm.device)
    kept = made.empty(1000).fill_(1.0)
    view = made.empty(64, dtype=torch.int32)[8:].view(7, 8).fill_(comm.rank)
    made.all_reduce(x)
    made.all_reduce(kept)
    made.close()
    comm.barrier()  # all ranks have closed
    totals = [float(each.add_(1).sum()) for each in (x, kept, view)]
    assert totals == [1000.0 * (comm.size + 1)] * 2 + [56.0 * (comm.rank + 1)]
    assert error_of(made.symmetric).startswith("Closed: ")
