"""Memory: tensors of any place, size and alignment; the arena's own; and nothing left behind by communicators."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from commlib.collectives.nccl_calls import SAFE_SYMMETRIC
from commlib.communicator import Communicator
from commlib.errors import CommError, Unsupported
from commlib.plan import Plan
from commlib.testing import Ranks
from tests.gpu.fresh import as_if_nccl_were_new, fresh
from tests.gpu.steady import ALGORITHMS, KERNELS, Steady, capture, first, pinned, warm_up

ARENA_BYTES = 64 << 20  # of nccl_ranks
SLACK_BYTES = 64 << 20  # less than the smallest arena with its slots
NCCL = torch.cuda.nccl.version() if torch.cuda.is_available() else ()
SENDS = ("send_recv", "all_to_all", "all_to_allv", "gather", "scatter")  # what NCCL's sends and receives are made to do
RINGS = ("broadcast", "all_gather", "all_gatherv", "all_reduce", "reduce_scatter")


def refusals(comm: Communicator) -> dict[str, str]:
    """A plan that wants NCCL's symmetric kernel where it may: an NCCL that is too old for it says so.

    Its row would have it passed over, so this communicator is told that it serves.
    """
    with as_if_nccl_were_new():
        comm = fresh(comm)
    inside, outside = comm.empty(1000), torch.zeros(1000, device=comm.device)
    inside.zero_()
    cases = {
        "empty": (inside, inside),
        "a slice of it": (inside[3:90], inside[3:90]),
        "two of them": (inside, comm.empty(1000)),
        "torch's": (outside, outside),
        "in alone": (inside, torch.empty_like(outside)),
        "out alone": (outside, comm.empty(1000)),
    }
    before, found = comm.plan, {}
    comm.use(Plan.only({"all_reduce": "nccl_symmetric"}, base=before))
    for name, (x, out) in cases.items():
        try:
            comm.all_reduce(x, out=None if out is x else out)
            found[name] = ""
        except Unsupported as error:
            found[name] = str(error)
    comm.use(before)
    torch.cuda.synchronize()
    del inside, cases, x, out
    comm.close()
    return found


def layout(comm: Communicator) -> tuple[list[int], bool, bool]:
    """Where tensors lie relative to the first, whether that is aligned, and whether freed memory comes again."""
    kept = [comm.empty(n, dtype=torch.uint8) for n in (1, 1000, 3, 70_000)]
    places = [x.data_ptr() for x in kept]
    dropped = kept.pop(1).data_ptr()
    again = comm.empty((500,), torch.bfloat16).data_ptr()
    return [place - places[0] for place in places], all(place % 256 == 0 for place in places), again == dropped


def on_symmetric_tensors(comm: Communicator, name: str, algorithm: str) -> str:
    found = []
    with pinned(comm, name, algorithm):
        for count in (1, 33, 70_001):
            call = Steady(comm, name, count, symmetric=True)
            for step in range(3):
                call.load(step)
                call.run()
                found.append(call.wrong(step))
    return first(found)


def fill_up(comm: Communicator) -> str:
    try:
        comm.empty(ARENA_BYTES, dtype=torch.float32)
    except CommError as error:
        comm.empty(ARENA_BYTES // 8, dtype=torch.float32)  # what fits, still does
        return str(error)
    return "no error"


def outlive(comm: Communicator) -> tuple[float, float]:
    """Tensors keep their memory, views too, whatever becomes of the communicator."""
    made = fresh(comm)
    kept = made.empty(1000)
    view = made.empty(64, dtype=torch.int32)[8:].view(7, 8)
    kept.fill_(1.0)
    view.fill_(comm.rank)
    made.all_reduce(kept)
    made.close()
    comm.barrier()  # all ranks have closed
    kept.add_(1)
    result = float(kept.sum()), float(view.sum())
    torch.cuda.synchronize()
    return result


def by_nccl_apart(comm: Communicator, sends: str, captured: bool) -> str:
    """NCCL's sends, then its rings, on tensors of the arena that lie at another place on each rank."""
    made = fresh(comm, max_bytes=ARENA_BYTES)
    apart = made.empty(5000 * made.rank + 1, dtype=torch.uint8)
    found, graphs = [], []
    for name in (sends, *RINGS):
        call = Steady(made, name, 1_000_003, torch.uint8, symmetric=True, shifts=(1, 0))
        with pinned(made, name, "nccl_direct"):
            warm_up(call)
            graphs += [capture(call)] if captured else []
            for step in range(3):
                call.load(step)
                graphs[-1].replay() if captured else call.run()
                found.append(call.wrong(step))
        del call
    graphs.clear()
    made.barrier()
    del apart
    made.close()
    return first(found)


def shift(comm: Communicator, name: str, algorithm: str) -> str:
    """Bytes at every distance from what words, packets and pairs would like."""
    found = []
    with pinned(comm, name, algorithm):
        for dtype, shifts in ((torch.uint8, ((0, 1), (1, 0), (3, 3), (8, 4), (15, 9))), (torch.bfloat16, ((1, 6),))):
            for count in (0, 1, 2, 15, 16, 17, 1009, 40_961):
                for step, pair in enumerate(shifts):
                    call = Steady(comm, name, count, dtype, shifts=pair)
                    call.load(step)
                    call.run()
                    found.append(call.wrong(step))
    return first(found)


def exceed(comm: Communicator, name: str, algorithm: str) -> str:
    whole = ARENA_BYTES // 4 + 300_007
    count = whole if name in ("all_reduce", "broadcast", "reduce") else whole // comm.size | 1
    with pinned(comm, name, algorithm):
        call = Steady(comm, name, count)
        found = []
        for step in range(2):
            call.load(step)
            call.run()
            found.append(call.wrong(step))
    del call
    torch.cuda.empty_cache()
    return first(found)


def make_use_close(comm: Communicator, how: str) -> None:
    made = comm.split(0, comm.rank) if how == "split" else fresh(comm, max_bytes=ARENA_BYTES)
    assert made is not None
    call = Steady(made, "all_reduce", 33)
    warm_up(call)
    kept = made.empty(1000)
    made.close()
    assert call.wrong(0) == ""
    del kept


def left_behind(comm: Communicator, how: str, times: int) -> tuple[int, int, int]:
    """Bytes of the GPU, open files and threads after so many communicators, less those before."""
    for _ in range(3):
        make_use_close(comm, how)
    before = holdings(comm)
    for _ in range(times):
        make_use_close(comm, how)
    after = holdings(comm)
    return after[0] - before[0], after[1] - before[1], after[2] - before[2]


def holdings(comm: Communicator) -> tuple[int, int, int]:
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


@pytest.mark.skipif(SAFE_SYMMETRIC <= NCCL, reason="the symmetric kernel runs here, so nothing tells it from others")
def test_tensors_of_the_arena_are_recognised(nccl_ranks: Ranks) -> None:
    for found in nccl_ranks.run(refusals):
        recognised = {name for name, text in found.items() if "2.30.7" in text}
        assert recognised == {"empty", "a slice of it", "two of them"}, found
        assert all(found[name] == "" for name in found.keys() - recognised)


def test_the_arena_is_laid_out_alike_on_all_ranks_and_used_again(nccl_ranks: Ranks) -> None:
    answers = nccl_ranks.run(layout)
    assert all(answer == answers[0] for answer in answers)
    assert all(aligned and again for _, aligned, again in answers)


@pytest.mark.parametrize(("name", "algorithm"), ALGORITHMS)
def test_every_algorithm_takes_tensors_of_the_arena(nccl_ranks: Ranks, name: str, algorithm: str) -> None:
    assert set(nccl_ranks.run(on_symmetric_tensors, name, algorithm)) == {""}


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("sends", SENDS)
def test_nccl_itself_takes_tensors_of_the_arena_wherever_they_lie(
    nccl_ranks: Ranks, sends: str, captured: bool
) -> None:
    assert set(nccl_ranks.run(by_nccl_apart, sends, captured)) == {""}


def test_a_full_arena_says_what_it_has_and_what_to_do(nccl_ranks: Ranks) -> None:
    for text in nccl_ranks.run(fill_up):
        assert f"needs {4 * ARENA_BYTES} bytes" in text
        assert "largest free block" in text
        assert f"{ARENA_BYTES}-byte arena" in text
        assert "COMMLIB_MAX_BYTES" in text


def test_tensors_of_the_arena_outlive_their_communicator(nccl_ranks: Ranks) -> None:
    answers = nccl_ranks.run(outlive)
    assert answers == [(1000.0 * (len(answers) + 1), 56.0 * rank) for rank in range(len(answers))]


@pytest.mark.parametrize(("name", "algorithm"), KERNELS)
def test_tensors_may_begin_at_any_byte(nccl_ranks: Ranks, name: str, algorithm: str) -> None:
    assert set(nccl_ranks.run(shift, name, algorithm)) == {""}


@pytest.mark.parametrize(("name", "algorithm"), KERNELS)
def test_tensors_may_be_larger_than_the_arena(nccl_ranks: Ranks, name: str, algorithm: str) -> None:
    assert set(nccl_ranks.run(exceed, name, algorithm)) == {""}


@pytest.mark.parametrize(("how", "times"), [("split", 50), ("whole", 10)])
def test_communicators_leave_nothing_behind(nccl_ranks: Ranks, how: str, times: int) -> None:
    for num_bytes, files, threads in nccl_ranks.run(left_behind, how, times):
        assert num_bytes < SLACK_BYTES
        assert files <= 4
        assert threads <= 4


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
