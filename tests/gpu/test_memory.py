"""Memory: tensors of any place, size and alignment; the arena's own; and nothing left behind by communicators."""

import gc
from pathlib import Path

import pytest
import torch

from commlib.communicator import Communicator
from commlib.tools.testing import Ranks
from tests.gpu.faults import error_of
from tests.gpu.fresh import fresh
from tests.gpu.on_ranks import on_every_rank
from tests.gpu.steady import KERNELS, Steady, capture, checked, first, pinned, warm_up

ARENA_BYTES = 64 << 20  # of nccl_ranks
SLACK_BYTES = 64 << 20  # less than the smallest arena with its slots
SENDS = ("send_recv", "all_to_all", "all_to_allv", "gather", "scatter")  # what NCCL's sends and receives are made to do
RINGS = ("broadcast", "all_gather", "all_gatherv", "all_reduce", "reduce_scatter")


def layout(comm: Communicator) -> tuple[list[int], bool, bool]:
    """Where tensors lie relative to the first, whether that is aligned, and whether freed memory comes again."""
    kept = [comm.empty(n, dtype=torch.uint8) for n in (1, 1000, 3, 70_000)]
    places = [x.data_ptr() for x in kept]
    dropped = kept.pop(1).data_ptr()
    again = comm.empty((500,), torch.bfloat16).data_ptr()
    return [place - places[0] for place in places], all(place % 256 == 0 for place in places), again == dropped


@on_every_rank
def test_a_full_arena_says_what_it_has_and_what_to_do(comm: Communicator) -> None:
    said = error_of(lambda: comm.empty(ARENA_BYTES, dtype=torch.float32))
    comm.empty(ARENA_BYTES // 8, dtype=torch.float32)  # what fits, still does
    words = f"needs {4 * ARENA_BYTES} bytes", f"{ARENA_BYTES}-byte arena", "COMMLIB_MAX_BYTES"
    assert all(each in said for each in words), said


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("sends", SENDS)
@on_every_rank
def test_nccl_itself_takes_tensors_of_the_arena_wherever_they_lie(
    comm: Communicator, sends: str, captured: bool
) -> str:
    """NCCL's sends, then its rings, on tensors of the arena that lie at another place on each rank."""
    made = fresh(comm, max_bytes=ARENA_BYTES)
    apart = made.empty(5000 * made.rank + 1, dtype=torch.uint8)
    found, graphs = [], []
    for name in (sends, *RINGS):
        call = Steady(made, name, 1_000_003, torch.uint8, symmetric=True, shifts=(1, 0))
        with pinned(made, name, "nccl_direct"):
            warm_up(call)
            graphs += [capture(call)] if captured else []
            found.append(checked(3, graphs[-1].replay if captured else call.run, call))
        del call
    graphs.clear()
    made.barrier()
    del apart
    made.close()
    return first(found)


@pytest.mark.parametrize(("name", "algorithm"), KERNELS)
@on_every_rank
def test_tensors_may_begin_at_any_byte(comm: Communicator, name: str, algorithm: str) -> str:
    """Bytes at every distance from what words, packets and pairs would like."""
    found = []
    with pinned(comm, name, algorithm):
        for dtype, shifts in ((torch.uint8, ((0, 1), (1, 0), (3, 3), (8, 4), (15, 9))), (torch.bfloat16, ((1, 6),))):
            for count in (0, 1, 2, 15, 16, 17, 1009, 40_961):
                for step, pair in enumerate(shifts):
                    call = Steady(comm, name, count, dtype, shifts=pair)
                    found.append(checked(1, call.run, call, begin=step))
    return first(found)


@pytest.mark.parametrize(("name", "algorithm"), KERNELS)
@on_every_rank
def test_tensors_may_be_larger_than_the_arena(comm: Communicator, name: str, algorithm: str) -> str:
    whole = ARENA_BYTES // 4 + 300_007
    count = whole if name in ("all_reduce", "broadcast", "reduce") else whole // comm.size | 1
    with pinned(comm, name, algorithm):
        call = Steady(comm, name, count)
        wrong = checked(2, call.run, call)
    del call
    torch.cuda.empty_cache()
    return wrong


def make_use_close(comm: Communicator, how: str) -> None:
    made = comm.split(0, comm.rank) if how == "split" else fresh(comm, max_bytes=ARENA_BYTES)
    assert made is not None
    call = Steady(made, "all_reduce", 33)
    warm_up(call)
    kept = made.empty(1000)
    made.close()
    assert call.wrong(0) == ""
    del kept


def holdings(comm: Communicator) -> tuple[int, int, int]:
    """Bytes of the GPU, open files and threads."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    comm.barrier()
    free, total = torch.cuda.mem_get_info()
    found = total - free, entries("/proc/self/fd"), entries("/proc/self/task")
    comm.barrier()  # nobody goes on before all have looked
    return found


def entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def test_the_arena_is_laid_out_alike_on_all_ranks_and_used_again(nccl_ranks: Ranks) -> None:
    answers = nccl_ranks.run(layout)
    assert all(answer == answers[0] for answer in answers)
    assert all(aligned and again for _, aligned, again in answers)


@pytest.mark.parametrize(("how", "times"), [("split", 50), ("whole", 10)])
@on_every_rank
def test_communicators_leave_nothing_behind(comm: Communicator, how: str, times: int) -> None:
    for _ in range(3):
        make_use_close(comm, how)
    before = holdings(comm)
    for _ in range(times):
        make_use_close(comm, how)
    num_bytes, files, threads = (b - a for a, b in zip(before, holdings(comm), strict=True))
    assert num_bytes < SLACK_BYTES
    assert max(files, threads) <= 4


def move_pinned(comm: Communicator) -> bool:
    """Megabytes that CUDA pinned, which the kernel may not read for a peer."""
    peer = 1 - comm.rank
    x = torch.full((1 << 18,), float(comm.rank)).pin_memory()
    everyone = comm.all_gather_into_tensor(torch.empty(2 << 18).pin_memory(), x)
    theirs = comm.send_recv(x, peer, torch.empty(1 << 18).pin_memory(), peer)
    return torch.equal(everyone, torch.arange(2.0).repeat_interleave(1 << 18)) and bool((theirs == peer).all())


def test_pinned_tensors_move_between_processes() -> None:
    with Ranks(2, backend="shm", timeout_s=20.0) as ranks:
        assert ranks.run(move_pinned) == [True, True]
