"""symmetric(): torch's own allocations in the arena, for as long as the block lasts."""

from __future__ import annotations

import pytest
import torch

from commlib.collectives.nccl_calls import SAFE_SYMMETRIC
from commlib.communicator import Communicator
from commlib.errors import CommError, Unsupported
from commlib.plan import Plan
from commlib.testing import Ranks
from tests.gpu.fresh import as_if_nccl_were_new, fresh
from tests.gpu.steady import pinned

ARENA_BYTES = 64 << 20
NCCL = torch.cuda.nccl.version() if torch.cuda.is_available() else ()
needs_old_nccl = pytest.mark.skipif(SAFE_SYMMETRIC <= NCCL, reason="nothing tells the symmetric kernel from others")


def recognised(comm: Communicator, x: torch.Tensor) -> bool:
    """Whether a call takes it for symmetric: an NCCL that is too old for symmetric kernels refuses it then."""
    before = comm.plan
    comm.use(Plan.only({"all_reduce": "nccl_symmetric"}, base=before))
    try:
        comm.all_reduce(x)
        return False
    except Unsupported:
        return True
    finally:
        comm.use(before)


def where_tensors_lie(comm: Communicator) -> dict[str, bool]:
    with as_if_nccl_were_new():
        made = fresh(comm, max_bytes=ARENA_BYTES)
    before = torch.ones(1000, device=comm.device)
    with made.symmetric():
        small = torch.ones(1000, device=comm.device)
        large = torch.ones(3_000_000, device=comm.device)
        result = large * 2
    between = torch.ones(1000, device=comm.device)
    with made.symmetric():
        again = torch.ones(1000, device=comm.device)
    after = torch.ones(3_000_000, device=comm.device)
    tensors = {"small": small, "large": large, "result": result, "again": again}
    tensors |= {"before": before, "between": between, "after": after}
    found = {name: recognised(made, x) for name, x in tensors.items()}
    found["a view"] = recognised(made, large[5:1000])
    made.barrier()
    del tensors, small, large, result, again
    made.close()
    return found


def values(comm: Communicator) -> bool:
    """Tensors from inside are tensors like any other: all sizes by the shipped plan, in place and not."""
    made = fresh(comm, max_bytes=ARENA_BYTES)
    good = True
    for count in (1, 1001, 70_001, 300_007):
        with made.symmetric():
            x = torch.arange(count, device=comm.device) % 23 + 1.0 * comm.rank
            gathered = torch.empty(comm.size * count, device=comm.device)
        made.all_gather_into_tensor(gathered, x)
        made.all_reduce(x)
        good &= torch.equal(gathered.view(comm.size, count).sum(dim=0), x)
        expected = torch.arange(count, device=comm.device) % 23 * comm.size + comm.size * (comm.size - 1) / 2
        good &= torch.equal(x, expected)
    del x, gathered
    made.close()
    return good


def by_nccl_itself(comm: Communicator) -> list[str]:
    """NCCL takes tensors in the arena for plain ones; odd blocks, each written by the kernel just ahead."""
    made = fresh(comm, max_bytes=ARENA_BYTES)
    n, wrong = made.size, []
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        with pinned(made, name, "nccl_direct"):
            for count in (1, 7, 32_769, 70_000):
                with made.symmetric():
                    block = torch.empty(count, dtype=torch.bfloat16, device=made.device)
                    whole = torch.empty(n * count, dtype=torch.bfloat16, device=made.device)
                for step in range(20):
                    torch.full((count,), step + made.rank, out=block)
                    torch.full((n * count,), step + made.rank, out=whole)
                    total = float(n * step + n * (n - 1) // 2)
                    if name == "all_reduce":
                        good = bool((made.all_reduce(block) == total).all())
                    elif name == "all_gather":
                        made.all_gather_into_tensor(whole, block)
                        ranks = torch.arange(n, device=made.device).repeat_interleave(count)
                        good = torch.equal(whole, (ranks + step).to(whole.dtype))
                    else:
                        made.reduce_scatter_tensor(block, whole)
                        good = bool((block == total).all())
                    wrong += [] if good else [f"{name} of {count}, step {step}"]
                del block, whole
    made.close()
    return wrong


def ask_for_too_much(comm: Communicator) -> list[str]:
    """The arena is full: an error, and everything goes on as before, inside the block and after it."""
    made = fresh(comm, max_bytes=ARENA_BYTES)
    found = []
    with made.symmetric():
        fits = torch.ones(1000, device=comm.device)
        try:
            torch.empty(4 * ARENA_BYTES, dtype=torch.uint8, device=comm.device)
            found.append("no error")
        except (CommError, torch.OutOfMemoryError) as error:
            found.append("" if str(error) else "an error without a word")
        smaller = torch.ones(2000, device=comm.device)
    outside = torch.ones(ARENA_BYTES, device=comm.device)
    total = float(made.all_reduce(fits)[0] + made.all_reduce(smaller)[0] + made.all_reduce(outside)[0])
    found.append("" if total == 3 * comm.size else f"a sum of {total}")
    del fits, smaller
    made.close()
    return found


def again_and_again(comm: Communicator) -> bool:
    """Tensors that are gone leave their room to the next ones."""
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


def leave_by_an_error(comm: Communicator) -> bool:
    made = fresh(comm, max_bytes=ARENA_BYTES)
    try:
        with made.symmetric():
            raise KeyError
    except KeyError:
        pass
    x = torch.ones(2 * ARENA_BYTES, dtype=torch.uint8, device=comm.device)  # does not fit into the arena
    made.close()
    return bool((x == 1).all())


def outlive(comm: Communicator) -> tuple[float, str]:
    made = fresh(comm, max_bytes=ARENA_BYTES)
    with made.symmetric():
        x = torch.ones(1000, device=comm.device)
    made.all_reduce(x)
    made.close()
    comm.barrier()  # all ranks have closed
    x.add_(1)
    total = float(x.sum())
    try:
        with made.symmetric():
            text = "no error"
    except CommError as error:
        text = str(error)
    return total, text


@needs_old_nccl
def test_what_is_allocated_inside_lies_in_the_arena_and_nothing_else_does(nccl_ranks: Ranks) -> None:
    for found in nccl_ranks.run(where_tensors_lie):
        assert {name for name, inside in found.items() if inside} == {"small", "large", "result", "again", "a view"}


def test_tensors_from_inside_work_in_calls_of_every_size(nccl_ranks: Ranks) -> None:
    assert all(nccl_ranks.run(values))


def test_nccl_itself_is_right_on_tensors_from_inside(nccl_ranks: Ranks) -> None:
    assert nccl_ranks.run(by_nccl_itself) == [[]] * nccl_ranks.size


def test_a_full_arena_is_an_error_and_allocations_go_on(nccl_ranks: Ranks) -> None:
    assert nccl_ranks.run(ask_for_too_much) == [["", ""]] * nccl_ranks.size


def test_room_is_used_again(nccl_ranks: Ranks) -> None:
    assert all(nccl_ranks.run(again_and_again))


def test_an_error_inside_gives_torch_its_own_memory_back(nccl_ranks: Ranks) -> None:
    assert all(nccl_ranks.run(leave_by_an_error))


def test_tensors_from_inside_outlive_the_communicator(nccl_ranks: Ranks) -> None:
    for total, text in nccl_ranks.run(outlive):
        assert total == 1000.0 * (nccl_ranks.size + 1)
        assert text == "this communicator is closed; call commlib.init() for a new one"
